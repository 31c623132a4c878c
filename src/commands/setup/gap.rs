//! Where rows may be missing, setup stops, unless a person accepts that: then it says first what is known of them.

use std::io::Write;

use super::{Found, SetupError, SetupOptions};
use crate::config::Config;
use crate::error_text::ErrorText as _;
use crate::postgres::Client;
use crate::postgres::catalog;
use crate::postgres::history::Verdict;
use crate::postgres::recovery;
use crate::postgres::slot::SlotFacts;

/// A gap that a person has accepted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Accepted {
    /// The slot is gone or can never be read again.
    Anew,
    /// It stays where it is.
    InPlace,
    /// It stands before the publication was made, where it could decode nothing.
    Moved,
}

/// Whether setup may go on, and which gap is accepted with that.
pub(super) async fn decide(
    client: &Client,
    found: &Found,
    config: &Config,
    options: &SetupOptions,
    out: &mut (dyn Write + Send),
) -> Result<Option<Accepted>, SetupError> {
    let slot = config.postgres.slot.as_str();
    let older_than_publication = found.slot.is_some() && found.publication.is_none();
    let (accepted, reason) = match found.verdict(config) {
        Verdict::Refused { reason, remedy } => return Err(SetupError::Refused { reason, remedy }),
        Verdict::Recovering { reason, remedy } if !options.accept_gap => {
            return Err(SetupError::Decide { reason, remedy });
        }
        Verdict::Recovering { reason, .. } => {
            // The lock stays with this session until it ends, so that no recovery begins meanwhile.
            if let Some(holder) = recovery::lock(client, slot).await? {
                return Err(SetupError::AtWork { slot: slot.to_owned(), holder });
            }
            (Accepted::Anew, reason)
        }
        Verdict::FirstUse { .. } if older_than_publication && !options.accept_gap => {
            let publication = config.postgres.publication.clone();
            return Err(SetupError::SlotBeforePublication { slot: slot.to_owned(), publication });
        }
        Verdict::FirstUse { .. } if older_than_publication => {
            (Accepted::Moved, format!("slot {slot} is older than its publication"))
        }
        Verdict::NotSetUp { .. } | Verdict::FirstUse { .. } | Verdict::Resume { .. } | Verdict::NewEpoch { .. } => {
            if options.accept_gap {
                writeln!(out, "slot {slot}: there is no gap to accept")?;
            }
            return Ok(None);
        }
        Verdict::Lost { reason, remedy }
        | Verdict::Gap { reason, remedy, .. }
        | Verdict::PublicationChanged { reason, remedy }
            if !options.accept_gap =>
        {
            return Err(SetupError::Decide { reason, remedy });
        }
        Verdict::Lost { reason, .. } => (Accepted::Anew, reason),
        Verdict::Gap { reason, .. } | Verdict::PublicationChanged { reason, .. } => {
            let recorded = found.record.as_ref().and_then(|record| publication_oid(&record.fingerprint));
            let now = found.publication.as_ref().map(|publication| publication.oid.to_string());
            let same = recorded.is_none() || recorded == now.as_deref();
            (if same { Accepted::InPlace } else { Accepted::Moved }, reason)
        }
    };
    if accepted != Accepted::InPlace
        && let Some(holder) = found.slot.as_ref().and_then(SlotFacts::held_by)
    {
        return Err(SetupError::SlotHeld { slot: slot.to_owned(), holder });
    }
    writeln!(out, "accepted: {reason}")?;
    tell_what_may_be_missing(client, found, out).await?;
    if recovery::is_under_way(found.record.as_ref()) {
        recovery::give_up(client, slot).await?;
    }
    Ok(Some(accepted))
}

/// The publication that a fingerprint speaks of; None: it had none.
fn publication_oid(fingerprint: &str) -> Option<&str> {
    let rest = fingerprint.split(' ').find_map(|part| part.strip_prefix("publication="))?;
    rest.split_once('/').map(|(oid, _)| oid)
}

async fn tell_what_may_be_missing(
    client: &Client,
    found: &Found,
    out: &mut (dyn Write + Send),
) -> Result<(), SetupError> {
    let Some(record) = &found.record else {
        writeln!(out, "  nothing was recorded of it, so nothing tells which rows may be missing")?;
        return Ok(());
    };
    writeln!(out, "  rows that committed after {} may be missing in Kafka", record.confirmed_lsn)?;
    let Some(table) = found.table() else { return Ok(()) };
    let comparable = record.system_identifier == found.identity.system_identifier
        && record.database_oid == found.identity.database_oid
        && record.table_oid == table.oid;
    let horizon = record.horizon.filter(|_| comparable);
    let Some(horizon) = horizon else {
        writeln!(
            out,
            "  which rows of {} these are cannot be told: the table or the database is not the one that was recorded",
            table.sql()
        )?;
        return Ok(());
    };
    match catalog::rows_at_risk(client, table, horizon).await {
        Ok(count) => writeln!(
            out,
            "  of the rows that are in {} now, at most {count}: SELECT * FROM {} WHERE age(xmin) <= \
            age('{horizon}'::xid8::xid)",
            table.sql(),
            table.sql()
        )?,
        Err(error) => {
            let why = error.text();
            writeln!(out, "  how many of the rows in {} that are, could not be counted: {why}", table.sql())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_publication_is_read_out_of_a_fingerprint() {
        assert_eq!(publication_oid("publication=16400/745 tables=16401/745 schemas=none table=16385/p"), Some("16400"));
        assert_eq!(publication_oid("publication=none tables=none schemas=none table=none"), None);
        assert_eq!(publication_oid(""), None);
    }
}
