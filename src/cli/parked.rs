//! The arguments of `walpost parked`.

use clap::{Args, Subcommand};

#[derive(Clone, Debug, Args)]
pub struct ParkedArgs {
    #[command(subcommand)]
    pub command: ParkedCommand,
}

#[derive(Clone, Debug, Subcommand)]
pub enum ParkedCommand {
    /// What waits for a decision, oldest first
    List {
        /// Also what waits behind another message
        #[arg(long)]
        all: bool,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(i64).range(1..))]
        limit: i64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// One message, whole
    Show {
        #[arg(value_name = "ID")]
        id: i64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Publish messages after all, each with what waits behind it
    Retry {
        #[command(flatten)]
        which: WhichParked,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Give messages up; what waits behind them is published
    Discard {
        #[command(flatten)]
        which: WhichParked,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub struct WhichParked {
    /// The messages' ids, as `walpost parked list` shows them
    #[arg(value_name = "ID")]
    pub ids: Vec<i64>,
    /// All that wait for a decision
    #[arg(long)]
    pub all: bool,
}
