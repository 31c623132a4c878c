//! The arguments of `walpost recover`.

use clap::Args;

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
