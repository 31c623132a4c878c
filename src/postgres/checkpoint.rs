//! The record: one row of `walpost.checkpoint` for each slot, kept outside the slot, so that a slot which was lost,
//! moved or made anew is noticed. *Record first, confirm second*: an LSN goes to Postgres only after
//! [`Recorder::record`] has committed it.
//!
//! The record is only as durable as its commit: a session that writes it must not run with `synchronous_commit = off`.

use std::fmt;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::catalog::{Identity, fingerprint_expression};
use crate::lsn::{Lsn, ParseLsnError};
use crate::names::statement_of;

/// The version of schema `walpost` that this program reads and writes.
pub const SCHEMA_VERSION: i32 = 2;

/// The record of a slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    pub slot_name: String,
    pub relay_name: String,
    pub system_identifier: String,
    pub timeline: u32,
    pub database_oid: u32,
    pub table_oid: u32,
    /// None until the first run has met the cluster.
    pub kafka_cluster_id: Option<String>,
    /// Of the publication and the table, when the epoch began; see [`fingerprint_expression`].
    pub fingerprint: String,
    pub epoch: i64,
    pub confirmed_lsn: Lsn,
    /// Every row whose `xmin` is older has been published. None: unknown.
    pub horizon: Option<u64>,
    /// Becomes the horizon once `confirmed_lsn` has reached the LSN.
    pub pending: Option<(u64, Lsn)>,
    pub state: State,
    /// How long ago the row was written, by the server's clock.
    pub age_seconds: f64,
    /// The process that set the state.
    pub holder: Option<String>,
}

/// What the last holder of the slot left in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A relay streams, or died while it did.
    Streaming,
    /// The last holder ended in order: whoever takes over need not wait for its requests.
    SignedOff,
    /// A recovery is at work, or was interrupted: nothing may stream.
    Recovering,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            State::Streaming => "streaming",
            State::SignedOff => "signed_off",
            State::Recovering => "recovering",
        }
    }

    fn parse(text: &str) -> Option<State> {
        [State::Streaming, State::SignedOff, State::Recovering].into_iter().find(|state| state.as_str() == text)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("there is no walpost.checkpoint in this database; run `walpost setup`")]
    NotSetUp { source: tokio_postgres::Error },
    #[error("the role may not {operation} walpost.checkpoint; run `walpost setup --grants ROLE` as the owner")]
    NotPermitted { operation: &'static str, source: tokio_postgres::Error },
    #[error(
        "schema walpost has version {found}, this walpost knows only {SCHEMA_VERSION}: a newer walpost made it; use \
        that version"
    )]
    TooNew { found: i32 },
    #[error("schema walpost has no version, so it was not finished or not made by walpost; run `walpost setup`")]
    Unversioned,
    #[error("the server is read-only, so walpost.checkpoint cannot be written")]
    ReadOnly { source: tokio_postgres::Error },
    #[error(
        "slot {slot} is gone, not usable or being recovered, or its record was begun anew by somebody else meanwhile"
    )]
    NoSlot { slot: String },
    #[error("the record of slot {slot} holds {column} = {value:?}, which is not readable")]
    Unreadable { slot: String, column: &'static str, value: String },
    #[error("could not {operation} walpost.checkpoint")]
    Failed { operation: &'static str, source: tokio_postgres::Error },
}

impl CheckpointError {
    /// Postgres' code for the failure, where it answered.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            CheckpointError::NotSetUp { source }
            | CheckpointError::NotPermitted { source, .. }
            | CheckpointError::ReadOnly { source }
            | CheckpointError::Failed { source, .. } => source.code().map(|code| code.code()),
            CheckpointError::TooNew { .. }
            | CheckpointError::Unversioned
            | CheckpointError::NoSlot { .. }
            | CheckpointError::Unreadable { .. } => None,
        }
    }

    /// Whether walpost may run without a record, with gap detection off: nobody made the schema, or none was allowed.
    pub fn is_absent(&self) -> bool {
        matches!(self, CheckpointError::NotSetUp { .. } | CheckpointError::NotPermitted { .. })
    }

    pub(super) fn from_sql(operation: &'static str, source: tokio_postgres::Error) -> CheckpointError {
        match source.code().map(|code| code.code()) {
            // undefined_table, invalid_schema_name
            Some("42P01" | "3F000") => CheckpointError::NotSetUp { source },
            Some("42501") => CheckpointError::NotPermitted { operation, source },
            Some("25006") => CheckpointError::ReadOnly { source },
            _ => CheckpointError::Failed { operation, source },
        }
    }
}

/// The version of schema `walpost`; None: it was never set up.
pub async fn schema_version(client: &Client) -> Result<Option<i32>, CheckpointError> {
    match known_version(client).await {
        Ok(version) => Ok(Some(version)),
        Err(CheckpointError::NotSetUp { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn known_version(client: &Client) -> Result<i32, CheckpointError> {
    let failed = |source| CheckpointError::from_sql("read", source);
    let statement = statement_of(include_str!("../../sql/022_checkpoint_version.sql"));
    let rows = client.query_typed(&statement, &[]).await.map_err(failed)?;
    match rows.first().map(|row| row.try_get::<_, Option<i32>>(0)).transpose().map_err(failed)?.flatten() {
        None => Err(CheckpointError::Unversioned),
        Some(found) if found > SCHEMA_VERSION => Err(CheckpointError::TooNew { found }),
        Some(found) => Ok(found),
    }
}

/// The record of a slot; None: there is none yet.
pub async fn read(client: &Client, slot: &str) -> Result<Option<Checkpoint>, CheckpointError> {
    known_version(client).await?;
    let failed = |source| CheckpointError::from_sql("read", source);
    let statement = statement_of(include_str!("../../sql/023_checkpoint_read.sql"));
    let rows = client.query_typed(&statement, &[(&slot, Type::TEXT)]).await.map_err(failed)?;
    rows.first().map(|row| from_row(slot, row)).transpose()
}

fn from_row(slot: &str, row: &Row) -> Result<Checkpoint, CheckpointError> {
    let failed = |source| CheckpointError::Failed { operation: "read", source };
    let unreadable = |column, value: String| CheckpointError::Unreadable { slot: slot.to_owned(), column, value };
    let lsn = |column, text: String| text.parse::<Lsn>().map_err(|_: ParseLsnError| unreadable(column, text));
    let xid = |column, text: String| text.parse::<u64>().map_err(|_| unreadable(column, text));

    let timeline: i64 = row.try_get(2).map_err(failed)?;
    let horizon: Option<String> = row.try_get(9).map_err(failed)?;
    let pending_horizon: Option<String> = row.try_get(10).map_err(failed)?;
    let pending_lsn: Option<String> = row.try_get(11).map_err(failed)?;
    let state: String = row.try_get(12).map_err(failed)?;
    Ok(Checkpoint {
        slot_name: slot.to_owned(),
        relay_name: row.try_get(0).map_err(failed)?,
        system_identifier: row.try_get(1).map_err(failed)?,
        timeline: u32::try_from(timeline).map_err(|_| unreadable("timeline", timeline.to_string()))?,
        database_oid: row.try_get(3).map_err(failed)?,
        table_oid: row.try_get(4).map_err(failed)?,
        kafka_cluster_id: row.try_get(5).map_err(failed)?,
        fingerprint: row.try_get(6).map_err(failed)?,
        epoch: row.try_get(7).map_err(failed)?,
        confirmed_lsn: lsn("confirmed_lsn", row.try_get(8).map_err(failed)?)?,
        horizon: horizon.map(|text| xid("horizon", text)).transpose()?,
        pending: match (pending_horizon, pending_lsn) {
            (Some(horizon), Some(at)) => Some((xid("pending_horizon", horizon)?, lsn("pending_lsn", at)?)),
            _ => None,
        },
        state: State::parse(&state).ok_or_else(|| unreadable("state", state))?,
        age_seconds: row.try_get(13).map_err(failed)?,
        holder: row.try_get(14).map_err(failed)?,
    })
}

/// What a new epoch begins with.
#[derive(Clone, Copy, Debug)]
pub struct Beginning<'a> {
    pub slot: &'a str,
    pub relay: &'a str,
    pub identity: &'a Identity,
    pub table_oid: u32,
    /// None: keep what the record knows.
    pub kafka_cluster_id: Option<&'a str>,
    /// As it was when the publication was found to be in order.
    pub fingerprint: &'a str,
    pub state: State,
    pub replaces: Replaces,
}

/// Which record a new one may take the place of. Any other was begun since one looked, perhaps by an earlier attempt of our
/// own whose answer was lost: to begin once more would take back what was recorded in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaces {
    Any,
    Epoch(i64),
    /// There must be none.
    Nothing,
}

impl Replaces {
    pub fn seen(record: Option<&Checkpoint>) -> Replaces {
        record.map_or(Replaces::Nothing, |record| Replaces::Epoch(record.epoch))
    }

    /// Whether a record of this epoch, or none, may be replaced.
    pub fn allows(self, epoch: Option<i64>) -> bool {
        match self {
            Replaces::Any => true,
            Replaces::Epoch(seen) => epoch.is_none_or(|epoch| epoch == seen),
            Replaces::Nothing => epoch.is_none(),
        }
    }
}

/// Where a new epoch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// max(the previous one + 1, Unix seconds by the server's clock).
    pub epoch: i64,
    /// The slot's own `confirmed_flush_lsn`.
    pub confirmed_lsn: Lsn,
    pub horizon: Option<u64>,
}

/// Begins an epoch where the slot stands now, with or without a record before it: at the first use of a slot, after the
/// history of LSNs has changed, or when a person has accepted a gap. Whatever position the record held is given up; but a
/// record that is being recovered is [`CheckpointError::NoSlot`].
pub async fn begin(client: &Client, new: Beginning<'_>) -> Result<Begun, CheckpointError> {
    let failed = |source| CheckpointError::from_sql("write", source);
    let timeline = i64::from(new.identity.timeline.unwrap_or(0));
    let state = new.state.as_str();
    // No epoch is negative.
    let replaces = match new.replaces {
        Replaces::Any => None,
        Replaces::Epoch(epoch) => Some(epoch),
        Replaces::Nothing => Some(-1),
    };
    let params: [(&(dyn ToSql + Sync), Type); 10] = [
        (&new.slot, Type::TEXT),
        (&new.relay, Type::TEXT),
        (&new.identity.system_identifier, Type::TEXT),
        (&timeline, Type::INT8),
        (&new.identity.database_oid, Type::OID),
        (&new.table_oid, Type::OID),
        (&new.kafka_cluster_id, Type::TEXT),
        (&new.fingerprint, Type::TEXT),
        (&state, Type::TEXT),
        (&replaces, Type::INT8),
    ];
    let statement = statement_of(include_str!("../../sql/024_checkpoint_begin.sql"));
    let rows = client.query_typed(&statement, &params).await.map_err(failed)?;
    let row = rows.first().ok_or_else(|| CheckpointError::NoSlot { slot: new.slot.to_owned() })?;
    Begun::from_row(new.slot, row)
}

impl Begun {
    /// Epoch, confirmed LSN, horizon.
    pub(super) fn from_row(slot: &str, row: &Row) -> Result<Begun, CheckpointError> {
        let failed = |source| CheckpointError::from_sql("write", source);
        let unreadable = |column, value: String| CheckpointError::Unreadable { slot: slot.to_owned(), column, value };
        let confirmed: String = row.try_get(1).map_err(failed)?;
        let horizon: Option<String> = row.try_get(2).map_err(failed)?;
        Ok(Begun {
            epoch: row.try_get(0).map_err(failed)?,
            confirmed_lsn: confirmed.parse().map_err(|_| unreadable("confirmed_lsn", confirmed))?,
            horizon: horizon.map(|text| text.parse().map_err(|_| unreadable("horizon", text))).transpose()?,
        })
    }
}

/// What became of an LSN that was to be recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// It is committed and may be confirmed.
    Done,
    /// The publication or the table is not what it was when the epoch began: rows may be missing from the stream, so
    /// nothing may be confirmed.
    FingerprintChanged { recorded: String, now: String },
    /// The record is already further: another relay confirms on this slot. Nothing was changed.
    Behind { recorded: Lsn },
    /// The record belongs to another epoch, or a command is healing it. This session is over.
    Superseded { epoch: i64, state: String },
    /// There is no record any more: `walpost teardown` ran, or somebody deleted it.
    Gone,
}

/// Writes the record of one session of streaming: the statement is composed once.
#[derive(Clone, Debug)]
pub struct Recorder {
    statement: String,
    publication: String,
    schema: String,
    table: String,
    slot: String,
    epoch: i64,
    holder: String,
}

impl Recorder {
    /// `schema` and `table` are the catalog's names, as found when the session began; `version` is the server's; `holder`
    /// is this relay's name, which no other one has.
    pub fn new(
        version: u32,
        publication: &str,
        (schema, table): (&str, &str),
        slot: &str,
        epoch: i64,
        holder: &str,
    ) -> Recorder {
        let statement = statement_of(include_str!("../../sql/025_checkpoint_record.sql"))
            .replace("{fingerprint}", &fingerprint_expression(version));
        Recorder {
            statement,
            publication: publication.to_owned(),
            schema: schema.to_owned(),
            table: table.to_owned(),
            slot: slot.to_owned(),
            epoch,
            holder: holder.to_owned(),
        }
    }

    pub fn epoch(&self) -> i64 {
        self.epoch
    }

    /// Commits `confirmed`, in one statement that also looks whether the publication is still the recorded one. Call it
    /// only with an LSN that has been received: what the statement sees is then newer than that LSN. Within the epoch
    /// the record never goes back; a lower LSN is [`Recorded::Behind`].
    pub async fn record(&self, client: &Client, confirmed: Lsn) -> Result<Recorded, CheckpointError> {
        let failed = |source| CheckpointError::from_sql("write", source);
        let lsn = confirmed.to_string();
        let params: [(&(dyn ToSql + Sync), Type); 6] = [
            (&self.publication, Type::TEXT),
            (&self.schema, Type::TEXT),
            (&self.table, Type::TEXT),
            (&self.slot, Type::TEXT),
            (&self.epoch, Type::INT8),
            (&lsn, Type::TEXT),
        ];
        let rows = client.query_typed(&self.statement, &params).await.map_err(failed)?;
        let Some(row) = rows.first() else { return Ok(Recorded::Gone) };
        if row.try_get(1).map_err(failed)? {
            return Ok(Recorded::Done);
        }
        let (Some(recorded), Some(epoch), Some(state), Some(position)) = (
            row.try_get::<_, Option<String>>(2).map_err(failed)?,
            row.try_get::<_, Option<i64>>(3).map_err(failed)?,
            row.try_get::<_, Option<String>>(4).map_err(failed)?,
            row.try_get::<_, Option<String>>(5).map_err(failed)?,
        ) else {
            return Ok(Recorded::Gone);
        };
        let now: String = row.try_get(0).map_err(failed)?;
        if epoch != self.epoch || state == State::Recovering.as_str() {
            return Ok(Recorded::Superseded { epoch, state });
        }
        if recorded != now {
            return Ok(Recorded::FingerprintChanged { recorded, now });
        }
        let recorded = position.parse().map_err(|_| CheckpointError::Unreadable {
            slot: self.slot.clone(),
            column: "confirmed_lsn",
            value: position,
        })?;
        Ok(Recorded::Behind { recorded })
    }

    /// Says in the record that its holder streams now. False: the record is gone, superseded, or being healed.
    pub async fn sign_on(&self, client: &Client) -> Result<bool, CheckpointError> {
        self.set_state(client, include_str!("../../sql/026_checkpoint_sign_on.sql")).await
    }

    /// Says in the record that this session ended with nothing under way. Only after the last request to Kafka has been
    /// answered: whoever takes over does not wait then. False: as above, or another holder has signed on since.
    pub async fn sign_off(&self, client: &Client) -> Result<bool, CheckpointError> {
        self.set_state(client, include_str!("../../sql/050_checkpoint_sign_off.sql")).await
    }

    async fn set_state(&self, client: &Client, statement: &str) -> Result<bool, CheckpointError> {
        let params: [(&(dyn ToSql + Sync), Type); 3] =
            [(&self.slot, Type::TEXT), (&self.epoch, Type::INT8), (&self.holder, Type::TEXT)];
        execute(client, statement, &params).await
    }
}

/// Stamps the record with the Kafka cluster that its first run has met; one that has a stamp keeps it (false).
pub async fn set_kafka_cluster(client: &Client, slot: &str, cluster_id: &str) -> Result<bool, CheckpointError> {
    let statement = include_str!("../../sql/027_checkpoint_kafka_cluster.sql");
    execute(client, statement, &[(&slot, Type::TEXT), (&cluster_id, Type::TEXT)]).await
}

/// Notes that what is published was seen to differ from `recorded`, so that it counts as changed also after that is undone.
pub async fn mark_changed(client: &Client, slot: &str, recorded: &str) -> Result<bool, CheckpointError> {
    let statement = include_str!("../../sql/051_checkpoint_changed.sql");
    execute(client, statement, &[(&slot, Type::TEXT), (&recorded, Type::TEXT)]).await
}

/// Gives the record to this relay; its Kafka cluster will be the one that the next run meets.
pub async fn adopt(client: &Client, slot: &str, relay: &str) -> Result<bool, CheckpointError> {
    let statement = include_str!("../../sql/028_checkpoint_adopt.sql");
    execute(client, statement, &[(&slot, Type::TEXT), (&relay, Type::TEXT)]).await
}

/// Deletes the record: the relay has come to its end. False: there was none.
pub async fn end(client: &Client, slot: &str) -> Result<bool, CheckpointError> {
    execute(client, include_str!("../../sql/029_checkpoint_end.sql"), &[(&slot, Type::TEXT)]).await
}

/// The other slots whose records speak of this publication: their relays read it too.
pub async fn sharing(client: &Client, slot: &str, publication_oid: u32) -> Result<Vec<String>, CheckpointError> {
    let failed = |source| CheckpointError::from_sql("read", source);
    let statement = statement_of(include_str!("../../sql/046_checkpoint_sharing.sql"));
    let rows = client.query_typed(&statement, &[(&slot, Type::TEXT), (&publication_oid, Type::OID)]).await;
    rows.and_then(|rows| rows.iter().map(|row| row.try_get(0)).collect()).map_err(failed)
}

/// Sees to it that what this session commits survives a crash of the server, where the role or the database has
/// switched that off (`synchronous_commit = off`): a record that a crash takes back looks like a gap.
pub async fn make_durable(client: &Client) -> Result<(), CheckpointError> {
    let failed = |source| CheckpointError::Failed { operation: "set synchronous_commit for", source };
    let statement = statement_of(include_str!("../../sql/047_durable.sql"));
    client.query_typed(&statement, &[]).await.map(|_| ()).map_err(failed)
}

pub(super) async fn execute(
    client: &Client,
    statement: &str,
    params: &[(&(dyn ToSql + Sync), Type)],
) -> Result<bool, CheckpointError> {
    let failed = |source| CheckpointError::from_sql("write", source);
    client.execute_typed(&statement_of(statement), params).await.map(|count| count > 0).map_err(failed)
}
