//! The `sidecore` command: benchmarks every path on this machine, and loads files into GPU memory.
//!
//! Output for people goes to the terminal as tables, for programs as one JSON object a line. It
//! states what was simulated or emulated. Nothing here knows how a path works inside: the engine and
//! the layers below do; this crate opens them, times them, checks every byte, and tells.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod commands;
mod interrupt;
mod printer;
mod report;
mod units;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{BenchForm, Cli, Command};
use crate::printer::tell;

/// Exit code of a command that could not be carried out.
const FAILED: u8 = 1;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // A peer of another command ends when that one says so, or by the signal itself.
    let listened = if is_peer(&cli) { Ok(()) } else { interrupt::listen() };
    let result = listened.and_then(|()| match cli.command {
        Command::Bench(command) => match command.form {
            Some(BenchForm::Baseline(args)) => commands::baseline::run(&args),
            Some(BenchForm::Bulk(args)) => commands::bulk_bench::run(&args, args::Work::Read),
            Some(BenchForm::Rows(args)) => commands::bulk_bench::run(&args, args::Work::Rows),
            Some(BenchForm::Copoll(args)) => commands::copoll::run(&args),
            Some(BenchForm::Idle(args)) => commands::idle::run(&args),
            Some(BenchForm::Interference(args)) => commands::interference::run(&args),
            Some(BenchForm::Placement(args)) => commands::placement::run(&args),
            Some(BenchForm::Suite(args)) => commands::suite::run(&args),
            Some(BenchForm::Sweep(args)) => commands::sweep::run(&args),
            Some(BenchForm::Window(args)) => commands::window::run(&args),
            None => commands::bench::run(command.bench),
        },
        Command::Load(args) => commands::load::run(&args),
        Command::Save(args) => commands::save::run(&args),
        Command::Tune(args) => commands::tune::run(&args),
        Command::Selftest(args) => commands::selftest::run(&args),
    });
    result.unwrap_or_else(|error| {
        if interrupt::asked() {
            tell!("interrupted: {error:#}");
            return ExitCode::from(interrupt::INTERRUPTED);
        }
        tell!("sidecore: {error:#}");
        ExitCode::from(FAILED)
    })
}

fn is_peer(cli: &Cli) -> bool {
    let Command::Bench(command) = &cli.command else { return false };
    matches!(&command.form, Some(BenchForm::Bulk(args)) if args.be.is_some())
}
