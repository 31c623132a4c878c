//! The built binary against real servers: one file for each promise, named after it. `make test` runs them; they need
//! Java and what `scripts/stack` finds or fetches, and fail without it. `tails` alone uses the library.

mod a_message_that_cannot_be_sent;
mod broker_faults;
mod documents;
mod effectively_once;
mod exactly_the_committed_rows;
mod field_cases_failover;
mod field_cases_kafka;
mod field_cases_operations;
mod field_cases_order;
mod field_cases_publication;
mod field_cases_slot;
mod field_cases_values;
mod first_errors;
mod idle_slot_advances;
mod kafka_outage;
mod kit;
mod last_write_wins;
mod memory_is_bounded;
mod no_repeats_without_a_crash;
mod nothing_is_lost;
mod one_stuck_partition;
mod parked;
mod process_faults;
mod record_first;
mod recover;
mod setting_up;
mod shutdown_never_waits;
mod sigterm_leaves_nothing_to_repeat;
mod storms;
mod tails;
mod the_kit_works;
mod tls;
mod until_caught_up;
mod warm_standby;
mod what_the_outside_sees;
