//! Values that stayed in the outbox when their messages were parked (`parking::reference`), read when their turn comes.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::{ParkedError, Work, get, query};
use crate::names::{fill, quote_ident};
use crate::parking::reference::{self, Reference};
use crate::source::KeptText;
use crate::source::decoder::BYTEA_OID;

/// Below the time that a statement of the control connection may take: a value that does not come is the message's fault.
const READ_WITHIN: Duration = Duration::from_secs(8);

/// Keeps of `works` what comes before the second message with a value in the outbox: at most one such value is in memory.
pub(super) fn shorten(works: &mut Vec<Work>) {
    let mut of_table = works.iter().enumerate().filter(|(_, work)| is_in_table(work));
    if let Some((second, _)) = of_table.nth(1) {
        works.truncate(second);
    }
}

fn is_in_table(work: &Work) -> bool {
    work.value.is_none() && work.row.as_deref().is_some_and(|row| row.contains("\"in_table\""))
}

/// Reads what a message has left in the outbox, or says in it why that is not to be had.
pub(super) async fn complete(client: &Client, work: &mut Work) -> Result<(), ParkedError> {
    let Some(json) = work.row.as_deref().filter(|_| is_in_table(work)) else { return Ok(()) };
    let Ok(mut json) = serde_json::from_str::<serde_json::Value>(json) else { return Ok(()) };
    if let Some(reference) = reference::from_json(&json) {
        match read(client, &reference).await? {
            Ok(value) => work.value = Some(value),
            Err(why) => work.missing = Some(why),
        }
        return Ok(());
    }
    if !json.is_array() {
        work.missing =
            Some("where its value is kept cannot be read: it was parked by another version of walpost".to_owned());
    }
    for column in json.as_array_mut().into_iter().flatten() {
        let Some(text) = column.get_mut(2) else { continue };
        let Some(reference) = reference::from_json(text) else { continue };
        match read(client, &reference).await? {
            Ok(value) if reference.type_oid == BYTEA_OID => *text = format!("\\x{}", hex::encode(value)).into(),
            Ok(value) => *text = serde_json::json!(KeptText::of(Some(&value))),
            Err(why) => {
                work.missing = Some(why);
                return Ok(());
            }
        }
    }
    work.row = Some(json.to_string());
    Ok(())
}

/// The outer error is one of the connection, or of the server as a whole; the inner one of this value alone.
async fn read(client: &Client, reference: &Reference) -> Result<Result<Bytes, String>, ParkedError> {
    let Reference { schema, table, column, type_oid, id_column, id_type_oid, id, bytes } = reference;
    let named = format!("{schema}.{table} with {id_column} = {id}");
    let oid = i64::from(*id_type_oid);
    let statement = include_str!("../../../sql/072_type_name.sql");
    let id_type = query(client, "read a type of", statement, &[(&oid, Type::INT8)]).await?;
    let Some(id_type) = id_type.first().map(|row| get::<Option<String>>(row, 0)).transpose()?.flatten() else {
        return Ok(Err(format!("the type of the id of the row of {named} exists no more")));
    };
    let column = quote_ident(column);
    let value = match *type_oid {
        BYTEA_OID => column,
        _ => fill(include_str!("../../../sql/071_parked_text.sql"), &[("payload", &column)]),
    };
    let (table, id_column) = (format!("{}.{}", quote_ident(schema), quote_ident(table)), quote_ident(id_column));
    let words =
        [("value", value.as_str()), ("outbox_messages", &table), ("message_id", &id_column), ("id_type", &id_type)];
    let select = fill(include_str!("../../../sql/070_parked_value.sql"), &words);
    let rows = match timeout(READ_WITHIN, client.query_typed(&select, &[(id, Type::TEXT)])).await {
        Err(_) => {
            let seconds = READ_WITHIN.as_secs();
            return Ok(Err(format!("its {bytes} bytes in {named} could not be read within {seconds} s")));
        }
        Ok(Ok(rows)) => rows,
        // The table or the column is gone, or may not be read.
        Ok(Err(error)) => match error.as_db_error() {
            Some(server) if !server.code().code().starts_with("57") => {
                let remedy = "is the table as it was, and may the relay's role read it (walpost setup --grants)?";
                return Ok(Err(format!("its value in {named} cannot be read ({}): {remedy}", server.message())));
            }
            _ => return Err(ParkedError::Failed { operation: "read a value of", source: error }),
        },
    };
    let value = rows.first().map(|row| get::<Option<Vec<u8>>>(row, 0)).transpose()?.flatten();
    Ok(value.map(Bytes::from).ok_or_else(|| {
        format!("its value was left in the outbox because it is large, and there is no row in {named} any more")
    }))
}
