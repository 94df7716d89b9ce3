//! Tests of the device side that need a GPU, whichever: the simulated one in CI, a real one by
//! `sidecore selftest --gpu 0`, under the same names.
//!
//! A case is a function that panics where something is wrong. [`for_each_case`] is the one list: the
//! crate's own test file makes a test of each name, [`CASES`] is for programs. Nothing is skipped: what a
//! GPU cannot do fails there.
//!
//! | part | duty |
//! | --- | --- |
//! | `bed` | an engine on a GPU, a source full of pattern, a ring, the lanes' results |
//! | `ring` | what lanes may do to a ring |
//! | `lost` | side cores that panic or stand still, drives that fail, memory that is used again |
//! | `bench` | the benchmark's kernel over a ring |
//! | `pairs` | a queue pair made by hand, whose controller is stepped; [`queue_bed`] makes it |
//! | `queue_bench` | the benchmark's kernels over a handmade queue pair, and the neighbour that computes |
//! | `queues` | queue pairs of a software drive that lanes drive |
//! | `stuck` | kernels that do not end: what stands where, and an end of the case all the same |
//! | [`litmus`] | whether memory keeps the order that rings build on |
#![forbid(unsafe_code)]

mod bed;
mod bench;
pub mod litmus;
mod lost;
mod pairs;
pub mod queue_bed;
mod queue_bench;
mod queues;
mod ring;
mod stuck;

use std::any::Any;
use std::sync::Arc;

use gpu::Gpu;

pub use stuck::{Standing, finish};

/// A test that runs on any GPU; it panics where something is wrong.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// The test.
    pub run: fn(&Arc<dyn Gpu>),
}

/// Hands the names of all cases to a macro, each with its module.
#[macro_export]
macro_rules! for_each_case {
    ($to:ident) => {
        $to! {
            bench::every_planned_io_is_done_once_and_checked,
            bench::an_agent_sees_every_end_for_the_warps_of_its_block,
            bench::injected_faults_are_counted_where_they_hit,
            bench::a_late_answer_is_one_sample,
            ring::every_route_moves_any_length_at_any_alignment,
            ring::a_view_of_another_version_is_refused,
            ring::lanes_give_up_and_their_records_stay_theirs,
            ring::lanes_that_leave_with_requests_in_flight_harm_nobody,
            ring::one_warp_goes_on_at_every_depth,
            ring::requests_that_are_refused_end_with_the_reason,
            ring::a_silent_drive_makes_records_busy_until_they_are_cancelled,
            ring::shallow_rings_serve_whole_warps_from_below_every_wrap,
            lost::a_panicking_side_core_is_heard_of_within_the_limit,
            lost::a_side_core_that_stands_still_is_heard_of_within_the_limit,
            lost::injected_faults_reach_the_lanes_that_they_hit,
            lost::late_payload_never_lands_in_memory_that_is_used_again,
            pairs::shallow_queues_serve_whole_warps_from_below_every_wrap,
            pairs::more_in_flight_than_the_queue_is_deep,
            pairs::writes_and_flushes_over_lists_of_pages_in_all_placements,
            pairs::a_drives_status_reaches_the_lane,
            pairs::command_ids_of_lanes_that_left_come_back,
            pairs::duplicates_end_nothing,
            pairs::without_an_answer_every_wait_ends_and_the_host_hears_of_it,
            pairs::a_closed_queue_serves_nobody,
            pairs::a_lane_attaches_only_to_a_pair_of_its_protocol,
            pairs::the_completion_queue_changes_hands,
            pairs::second_reads_are_shared_and_counted_apart,
            pairs::who_drains_for_others_leaves_nothing_to_lanes_that_wait_for_it,
            queue_bench::every_planned_io_is_done_once_and_counted_where_it_happens,
            queue_bench::an_agent_sees_the_ends_of_commands_for_the_warps_of_its_block,
            queue_bench::a_kernel_asleep_touches_nothing_and_ends_when_told,
            queue_bench::the_neighbour_that_computes_is_right,
            queues::lanes_move_every_byte_over_queue_pairs_in_all_placements,
            queues::lanes_write_over_a_queue_that_is_always_full,
            queues::memory_given_back_before_a_kernel_holds_nobody_up,
            queues::more_in_flight_than_queues_are_deep,
            queues::faults_of_the_drive_reach_the_lanes_that_they_hit,
            litmus::memory_keeps_the_order_that_rings_build_on,
        }
    };
}

macro_rules! cases {
    ($($module:ident::$name:ident,)*) => {
        /// All cases.
        pub const CASES: &[Case] =
            &[$(Case { name: stringify!($name), run: $module::$name },)*];
    };
}
for_each_case!(cases);

/// The case of a name.
pub fn find(name: &str) -> Option<&'static Case> {
    CASES.iter().find(|case| case.name == name)
}

/// How a case ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// Well.
    Passed,
    /// With what it said.
    Failed(String),
    /// Not: its kernel still runs, so what it uses is still there and nothing else can run on the GPU.
    /// Only the end of the process helps.
    Stuck(String),
}

/// Runs a case in a thread of its own.
///
/// # Panics
/// Where the system gives no thread.
pub fn run(case: &Case, gpu: &Arc<dyn Gpu>) -> End {
    let (watcher, stuck) = stuck::watching();
    let (case, gpu) = (*case, Arc::clone(gpu));
    let work = move || {
        stuck::watch(watcher);
        (case.run)(&gpu);
    };
    let thread = std::thread::Builder::new().name(case.name.to_owned()).spawn(work);
    let thread = thread.expect("a thread");
    match stuck.recv() {
        Ok(why) => End::Stuck(why),
        // The thread is over.
        Err(_) => match thread.join() {
            Ok(()) => End::Passed,
            Err(payload) => End::Failed(told(&*payload)),
        },
    }
}

fn told(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a text".to_owned())
}
