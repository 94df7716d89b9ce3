//! The project's tasks: `cargo xtask test`, `tidy`, `abi`, `mutants`, `instructions`.
//!
//! `test` is the whole of what continuous integration runs: a list of named steps (`steps`), each
//! of which counts what passed, failed and was skipped. The other tasks are single steps with
//! options of their own. Tools that a task builds or downloads go under `target/tools`, logs under
//! `target/xtask`, copies of the tree under `target/mutants`; nothing else is written except the
//! generated files (`include/sidecore/impl/abi__types.h`, `include/sidecore.h`, `UNSAFE.md`, the
//! committed figures).
#![forbid(unsafe_code)]
mod abi_header;
mod c_header;
mod instructions;
mod mutants;
mod packages;
mod process;
mod steps;
mod tidy;
mod tree;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of the sidecore project")]
struct Options {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run all tests as named steps; ends with `N passed, M failed, K skipped`
    Test(steps::Options),
    /// Check sizes, headers, unsafe notes, words, dependency arrows, links and the change log
    Tidy(tidy::Options),

    /// Write the generated C++ twin of the structures shared with the GPU
    Abi(abi_header::Options),
    /// Write the generated C header; with `--out`, build the shared library too
    Capi(c_header::Options),
    /// Apply each committed breakage to a copy of the tree and require that its test fails
    Mutants(mutants::Options),
    /// Count instructions an operation under callgrind and compare with the committed figures
    Instructions(instructions::Options),
}

fn main() -> ExitCode {
    let result = match Options::parse().task {
        Task::Test(options) => steps::run(&options),
        Task::Tidy(options) => tidy::run(&options),

        Task::Abi(options) => abi_header::run(&options),
        Task::Capi(options) => c_header::run(&options),
        Task::Mutants(options) => mutants::run(&options),
        Task::Instructions(options) => instructions::run(&options),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}
