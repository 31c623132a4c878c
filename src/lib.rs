//! walpost relays a transactional outbox from Postgres to Kafka by reading the write-ahead log.
//!
//! The modules, in the order in which a row passes them:
//!
//! ```text
//!  source   connection → frames → pgoutput → rows         (I/O in connection and stream, the rest pure)
//!  outbox   a row of the table → OutboxMessage            (pure)
//!  router   OutboxMessage → Record: topic, key, headers   (pure)
//!  sink     Record → Kafka; what comes back is a Delivery
//!  ack      deliveries → the watermark, without holes     (pure)
//!  relay    the loop that joins them, and the only place that sees both ends
//! ```
//!
//! Around them: `config` and `cli` (what the user asked for), `postgres` (SQL connections, the slot, the checkpoint
//! record), `names` (names in SQL), `telemetry` (logs, metrics, health) and `commands` (one file per command).

/// Whether the relay has the named [`planted::Bug`]: never, but in the simulation.
#[cfg(feature = "simulation")]
macro_rules! planted {
    ($bug:ident) => {
        $crate::planted::is_planted($crate::planted::Bug::$bug)
    };
}
#[cfg(not(feature = "simulation"))]
macro_rules! planted {
    ($bug:ident) => {
        false
    };
}

#[cfg(feature = "simulation")]
pub mod planted;
pub mod error_text;
pub mod lsn;
pub mod names;
pub mod config;
pub mod cli;
pub mod source;
pub mod outbox;
pub mod router;
pub mod sink;
pub mod ack;
pub mod parking;
pub mod relay;
pub mod postgres;
pub mod telemetry;
pub mod commands;
