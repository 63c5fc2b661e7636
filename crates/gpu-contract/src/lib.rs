//! What every implementation of [`vram_gpu::Backend`] must do, as tests any backend can run.
//!
//! A test crate says how to make a [`Rig`] and writes `vram_gpu_contract::contract_tests!(run)`: that makes one
//! `#[test]` of each case, which calls `run(name, case)`. Cases need about 64 MiB of memory per GPU and give back all
//! they take. Those about two GPUs use the same one twice where there is only one. Those about time and failure use
//! the rig's [`Injection`]; where nothing can be injected (a real GPU) they check what can be seen without.
//!
//! Only for tests: a case that fails panics.
#![forbid(unsafe_code)]

pub mod bands;
pub mod copies;
pub mod events;
pub mod host;
pub mod mapping;
mod rig;
pub mod shards;
mod simulated_driver;
pub mod streams;

pub use rig::{Injection, Rig};
pub use simulated_driver::SimulatedDriver;

/// One test of the contract.
pub type Case = fn(&Rig);

macro_rules! cases {
    ($d:tt $($module:ident :: $name:ident,)*) => {
        /// All cases by name.
        pub const CASES: &[(&str, Case)] = &[$((stringify!($name), $module::$name)),*];

        /// Makes a `#[test]` of each case; each calls `run(name, case)`.
        #[macro_export]
        macro_rules! contract_tests {
            ($d run:path) => {
                $(
                    #[test]
                    fn $name() {
                        $d run(stringify!($name), $crate::$module::$name);
                    }
                )*
            };
        }
    };
}

cases! { $
    bands::reserve_band_is_aligned_and_apart_from_others,
    bands::reserve_band_with_bad_arguments_is_refused,
    bands::reserve_band_at_gives_the_same_addresses_again,
    bands::free_band_while_mapped_is_refused_and_changes_nothing,
    bands::free_band_that_is_none_is_refused,
    shards::create_shard_until_out_of_memory_recovers,
    shards::create_shard_with_bad_arguments_is_refused,
    shards::memory_counts_a_shard_until_it_is_released_and_unmapped,
    shards::fresh_shard_holds_what_the_backend_says,
    shards::export_outlives_release,
    shards::import_shares_bytes_with_the_original,
    shards::import_of_something_else_is_refused,
    shards::shard_that_is_not_alive_is_refused,
    mapping::map_in_bad_places_is_refused,
    mapping::map_of_released_shard_keeps_its_bytes,
    mapping::map_again_elsewhere_keeps_bytes,
    mapping::unmap_of_anything_but_whole_shards_is_refused,
    mapping::set_access_with_bad_arguments_is_refused,
    mapping::set_access_decides_who_may_touch,
    copies::copy_in_and_out_keep_every_byte,
    copies::copy_over_two_shards_of_one_gpu_is_one_copy,
    copies::copy_over_two_gpus_works_when_split,
    copies::copy_between_gpus_keeps_every_byte,
    copies::copy_between_gpus_without_peer_access_keeps_every_byte,
    copies::copy_outside_what_is_mapped_is_refused_and_changes_nothing,
    copies::copy_onto_itself_is_refused,
    copies::copy_of_nothing_does_nothing,
    copies::copy_larger_than_a_chunk_is_whole,
    copies::fill_repeats_every_pattern_and_nothing_else,
    copies::fill_not_aligned_to_its_pattern_is_refused,
    streams::work_of_one_stream_runs_in_order,
    streams::enqueue_returns_before_the_work_has_run,
    streams::blocked_stream_holds_nobody_else,
    streams::streams_that_wait_for_events_run_in_that_order,
    streams::span_is_held_until_the_copy_is_done,
    streams::destroy_stream_finishes_what_is_enqueued,
    streams::stream_that_is_not_alive_is_refused,
    streams::many_threads_with_own_streams_do_not_disturb_each_other,
    events::event_is_reached_once_the_work_before_it_ran,
    events::synchronize_gives_up_when_the_time_is_up,
    events::failure_is_reported_by_one_event,
    events::destroyed_event_still_holds_who_waits_for_it,
    events::event_that_is_not_alive_is_refused,
    host::registered_memory_copies_like_any_other,
    host::register_twice_is_refused,
    host::copy_over_the_edge_of_a_registration_is_refused,
    host::registration_that_is_not_alive_is_refused,
}
