//! The arguments of each command.

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};

use super::choices;

#[derive(Clone, Debug, Default, Args)]
pub struct RunArgs {
    /// Create what is missing first, as `walpost setup` does
    #[arg(long)]
    pub setup: bool,
    /// End with 0 once everything that was committed before the start is confirmed
    #[arg(long)]
    pub until_caught_up: bool,
}

#[derive(Clone, Debug, Default, Args)]
pub struct SetupArgs {
    /// Write SQL for a migration to standard output and touch nothing
    #[arg(long)]
    pub print: bool,
    /// Create the outbox table as well
    #[arg(long)]
    pub create_table: bool,
    /// Table layout to create or to expect; also in the configuration as `preset`
    #[arg(long, value_name = "PRESET", value_parser = PossibleValuesParser::new(choices("preset")))]
    pub preset: Option<String>,
    /// Grant what the relay needs, and no more, to this role
    #[arg(long, value_name = "ROLE")]
    pub grants: Option<String>,
    /// Take over a record that another Kafka cluster or relay left
    #[arg(long)]
    pub adopt: bool,
    /// Go on after a lost slot or a gap without healing it; says what may be missing
    #[arg(long)]
    pub accept_gap: bool,
}

#[derive(Clone, Debug, Default, Args)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Default, Args)]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Default, Args)]
pub struct RecoverArgs {
    /// Show what would be published, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Publish every row of the table, where nothing tells which are at risk
    #[arg(long)]
    pub all_rows: bool,
    /// This cluster was made of the recorded one by pg_upgrade: its transaction ids go on
    #[arg(long)]
    pub after_pg_upgrade: bool,
    /// Leave out rows whose published_at is set; only where nothing but a relay sets it
    #[arg(long)]
    pub unmarked_only: bool,
}

#[derive(Clone, Debug, Default, Args)]
pub struct TeardownArgs {
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

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

#[derive(Clone, Debug, Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    pub command: ConfigCommand,
}

#[derive(Clone, Debug, Subcommand)]
pub enum ConfigCommand {
    /// Say OK, or everything that is wrong (exit code 78)
    Check(ConfigCheckArgs),
    /// Print the settings that count and where each comes from; secrets are not shown
    Show(ConfigShowArgs),
    /// Print a file with every setting, its default and its help
    Template,
}

#[derive(Clone, Debug, Default, Args)]
pub struct ConfigCheckArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Default, Args)]
pub struct ConfigShowArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Default, Args)]
pub struct DemoArgs {}

#[derive(Clone, Debug, Default, Args)]
pub struct VersionArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
