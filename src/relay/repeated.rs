//! Tells what passes from what comes back: a server that ends the stream with the same error, again and again, before
//! anything more could be confirmed, will do so for ever. Pure.

use crate::lsn::Lsn;
use crate::postgres::error::{ErrorKind, ServerError};

/// So many times in a row are no accident.
const TIMES: u32 = 3;

/// A row that the server cannot send, as far as that can be told from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub reason: String,
    pub remedy: String,
}

/// How often the stream ended in the same way.
#[derive(Debug, Default)]
pub struct Repeated {
    sqlstate: String,
    times: u32,
}

impl Repeated {
    /// A session ended with this error of the server, `confirmed` being what it had confirmed; `progressed`: that it had
    /// confirmed anything. Some: it will not get better by trying.
    pub fn failed(
        &mut self,
        error: &ServerError,
        progressed: bool,
        confirmed: Lsn,
        slot: &str,
        server_version: &str,
    ) -> Option<Unreadable> {
        // All others have a meaning of their own, and most of them pass.
        if error.kind() != ErrorKind::Other || error.sqlstate == "58P01" {
            self.forget();
            return None;
        }
        if progressed || self.sqlstate != error.sqlstate {
            (self.sqlstate, self.times) = (error.sqlstate.clone(), 0);
        }
        self.times += 1;
        (self.times >= TIMES).then(|| unreadable(error, confirmed, slot, server_version))
    }

    /// It got further, or ended for another reason.
    pub fn forget(&mut self) {
        *self = Repeated::default();
    }
}

fn unreadable(error: &ServerError, confirmed: Lsn, slot: &str, server_version: &str) -> Unreadable {
    let why = match error.sqlstate.as_str() {
        "22021" | "22P05" => "a text in it cannot be converted to UTF-8",
        // "invalid memory alloc request size", "out of memory": what is printed of a row has to fit into 1 GB.
        "XX000" | "54000" | "53200" => "a row is too large for the server to print it, or the server is at fault",
        _ => "the server is at fault, or a row in it",
    };
    Unreadable {
        reason: format!(
            "Postgres {server_version} ends the stream at the same place again and again: what committed next after \
             {confirmed} cannot be sent, {why} ({error})"
        ),
        remedy: format!(
            "no restart of walpost helps. If the server is at fault (its log, the release notes of later minor versions), \
             update it. Else find the row among those that were inserted last (a payload of hundreds of megabytes, a text in \
             another encoding), take it out of the table, stop walpost, SELECT pg_drop_replication_slot('{slot}'), and \
             `walpost recover` publishes all other rows from the table and streams on"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(sqlstate: &str) -> ServerError {
        ServerError {
            severity: "ERROR".into(),
            sqlstate: sqlstate.into(),
            message: "invalid memory alloc request size 1200000003".into(),
            detail: None,
            hint: None,
        }
    }

    fn fails(repeated: &mut Repeated, sqlstate: &str, progressed: bool) -> Option<Unreadable> {
        repeated.failed(&error(sqlstate), progressed, Lsn(0x10), "walpost", "17.5")
    }

    #[test]
    fn the_same_error_three_times_at_the_same_place_is_no_accident() {
        let mut repeated = Repeated::default();
        assert_eq!(fails(&mut repeated, "XX000", true), None);
        assert_eq!(fails(&mut repeated, "XX000", false), None);
        let said = fails(&mut repeated, "XX000", false).unwrap();
        assert!(said.reason.contains("0/10") && said.reason.contains("17.5") && said.reason.contains("1200000003"));
        assert!(said.remedy.contains("pg_drop_replication_slot('walpost')") && said.remedy.contains("walpost recover"));
        assert_eq!(fails(&mut repeated, "XX000", false), Some(said), "it stays so, in the same words");
    }

    #[test]
    fn another_error_or_progress_begins_anew() {
        let mut repeated = Repeated::default();
        for (sqlstate, progressed) in [("XX000", false), ("XX000", false), ("22021", false), ("22021", false)] {
            assert_eq!(fails(&mut repeated, sqlstate, progressed), None);
        }
        assert_eq!(fails(&mut repeated, "22021", true), None, "it got further");
        assert_eq!(fails(&mut repeated, "57P01", false), None);
        for _ in 0..2 {
            assert_eq!(fails(&mut repeated, "22021", false), None);
        }
        repeated.forget();
        assert_eq!(fails(&mut repeated, "22021", false), None);
    }
}
