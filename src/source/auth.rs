//! Startup and authentication of a replication connection: trust, password, md5, SCRAM-SHA-256 with and without
//! channel binding. What is not spoken (GSSAPI, SSPI, OAuth) is refused with a text that says what to change.

use bytes::Buf;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{self, ScramSha256};
use postgres_protocol::message::frontend;

use crate::postgres::address::ChannelBinding;
use crate::postgres::dial::Entry;
use crate::postgres::error::{AuthError, Failure, ServerError};
use crate::postgres::session_options;
use crate::source::connection::Wire;
use crate::source::protocol::{Message, ProtocolError, take_text};

const DURING: &str = "authenticating";

/// From the first byte to ReadyForQuery.
pub(crate) async fn log_in(wire: &mut Wire, entry: &Entry<'_>, application_name: &str) -> Result<(), Failure> {
    let options = session_options(entry.address);
    let parameters = [
        ("user", entry.address.user.as_str()),
        ("database", entry.address.database.as_str()),
        ("replication", "database"),
        ("client_encoding", "UTF8"),
        ("application_name", application_name),
        ("options", options.as_str()),
    ];
    wire.send(DURING, |out| frontend::startup_message(parameters, out)).await?;
    authenticate(wire, entry).await?;
    loop {
        let message = wire.message("starting the session").await?;
        match message.tag {
            b'Z' => return Ok(()),
            // The key of cancel requests, which are never sent.
            b'K' => {}
            b'v' => {}
            _ => return Err(unexpected(message, "while the session starts")),
        }
    }
}

async fn authenticate(wire: &mut Wire, entry: &Entry<'_>) -> Result<(), Failure> {
    let must_bind = entry.address.channel_binding == ChannelBinding::Require;
    let unbound = || match must_bind {
        true => Err(AuthError::ChannelBinding("the server asks for no SCRAM authentication")),
        false => Ok(()),
    };
    let password = || match &entry.password {
        Some(password) => Ok(password.expose().as_bytes()),
        None => Err(AuthError::PasswordMissing),
    };
    match request(wire).await? {
        Request::Ok => return Ok(unbound()?),
        Request::Cleartext => {
            unbound()?;
            let password = password()?;
            wire.send(DURING, |out| frontend::password_message(password, out)).await?;
        }
        Request::Md5(salt) => {
            unbound()?;
            let hash = md5_hash(entry.address.user.as_bytes(), password()?, salt);
            wire.send(DURING, |out| frontend::password_message(hash.as_bytes(), out)).await?;
        }
        Request::Sasl(mechanisms) => {
            let hash = wire.socket().server_end_point();
            let (mechanism, binding) = mechanism(&mechanisms, hash, entry.address.channel_binding)?;
            scram(wire, mechanism, ScramSha256::new(password()?, binding)).await?;
        }
        Request::Continue(_) | Request::Final(_) => return Err(out_of_order()),
    }
    match request(wire).await? {
        Request::Ok => Ok(()),
        _ => Err(out_of_order()),
    }
}

async fn scram(wire: &mut Wire, mechanism: &str, mut scram: ScramSha256) -> Result<(), Failure> {
    let failed = |error: std::io::Error| match error.to_string() {
        text if text.contains("iteration count") => AuthError::ScramIterations,
        text => AuthError::Scram(text),
    };
    wire.send(DURING, |out| frontend::sasl_initial_response(mechanism, scram.message(), out)).await?;
    let Request::Continue(challenge) = request(wire).await? else { return Err(out_of_order()) };
    scram.update(&challenge).map_err(failed)?;
    wire.send(DURING, |out| frontend::sasl_response(scram.message(), out)).await?;
    let Request::Final(proof) = request(wire).await? else { return Err(out_of_order()) };
    // The server proves here that it knows the password too.
    scram.finish(&proof).map_err(failed)?;
    Ok(())
}

/// Chooses between SCRAM with and without channel binding, and says to the server what we could have done: a man in
/// the middle who strikes PLUS off the list is found out by that.
fn mechanism(
    offered: &[String],
    hash: Option<Vec<u8>>,
    wanted: ChannelBinding,
) -> Result<(&'static str, sasl::ChannelBinding), AuthError> {
    let offers = |name: &str| offered.iter().any(|offered| offered == name);
    let must_bind = wanted == ChannelBinding::Require;
    let hash = match (wanted, hash) {
        (ChannelBinding::Disable, _) => None,
        (ChannelBinding::Require, None) => {
            return Err(AuthError::ChannelBinding(
                "the connection has no TLS, or the server's certificate has a signature without a hash (Ed25519)",
            ));
        }
        (_, hash) => hash,
    };
    match hash {
        Some(hash) if offers(sasl::SCRAM_SHA_256_PLUS) => {
            Ok((sasl::SCRAM_SHA_256_PLUS, sasl::ChannelBinding::tls_server_end_point(hash)))
        }
        _ if must_bind => Err(AuthError::ChannelBinding("the server does not offer SCRAM-SHA-256-PLUS")),
        Some(_) if offers(sasl::SCRAM_SHA_256) => Ok((sasl::SCRAM_SHA_256, sasl::ChannelBinding::unrequested())),
        None if offers(sasl::SCRAM_SHA_256) => Ok((sasl::SCRAM_SHA_256, sasl::ChannelBinding::unsupported())),
        _ => Err(AuthError::Unsupported(offered.join(", "))),
    }
}

enum Request {
    Ok,
    Cleartext,
    Md5([u8; 4]),
    Sasl(Vec<String>),
    Continue(bytes::Bytes),
    Final(bytes::Bytes),
}

async fn request(wire: &mut Wire) -> Result<Request, Failure> {
    loop {
        let message = wire.message(DURING).await?;
        match message.tag {
            // The server would like another protocol version; for 3.0 it has nothing to take back.
            b'v' => continue,
            b'R' => return parse_request(message.body),
            _ => return Err(unexpected(message, "while authenticating")),
        }
    }
}

fn parse_request(mut body: bytes::Bytes) -> Result<Request, Failure> {
    let short = |_| ProtocolError::Truncated("authentication");
    let unsupported = |name: &str| AuthError::Unsupported(name.to_owned()).into();
    match body.try_get_i32().map_err(short)? {
        0 => Ok(Request::Ok),
        3 => Ok(Request::Cleartext),
        5 => Ok(Request::Md5(body.try_get_u32().map_err(short)?.to_be_bytes())),
        10 => {
            let (mut rest, mut mechanisms) = (&body[..], Vec::new());
            while rest.first().is_some_and(|byte| *byte != 0) {
                mechanisms.push(take_text(&mut rest)?);
            }
            Ok(Request::Sasl(mechanisms))
        }
        11 => Ok(Request::Continue(body)),
        12 => Ok(Request::Final(body)),
        2 => Err(unsupported("Kerberos V5")),
        6 => Err(unsupported("SCM credential")),
        7 | 8 => Err(unsupported("GSSAPI")),
        9 => Err(unsupported("SSPI")),
        number => Err(unsupported(&format!("an unknown (number {number})"))),
    }
}

fn out_of_order() -> Failure {
    ProtocolError::Other("the server's authentication messages come out of order".to_owned()).into()
}

/// An error of the server as such; anything else as a break of the protocol.
pub(crate) fn unexpected(message: Message, during: &'static str) -> Failure {
    match message.tag {
        b'E' => Failure::server(ServerError::parse(&message.body)),
        tag => ProtocolError::Unexpected { tag, during }.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_strongest_scram_that_both_sides_can_is_chosen() {
        use ChannelBinding::*;
        let (plain, plus) = (sasl::SCRAM_SHA_256, sasl::SCRAM_SHA_256_PLUS);
        let table: [(&[&str], bool, ChannelBinding, Option<&str>); 11] = [
            (&[plus, plain], true, Prefer, Some(plus)),
            (&[plus, plain], true, Require, Some(plus)),
            (&[plus, plain], true, Disable, Some(plain)),
            (&[plus, plain], false, Prefer, Some(plain)),
            (&[plus, plain], false, Require, None),
            (&[plain], true, Prefer, Some(plain)),
            (&[plain], true, Require, None),
            (&[plain], false, Prefer, Some(plain)),
            (&["OAUTHBEARER"], true, Prefer, None),
            (&["OAUTHBEARER"], false, Disable, None),
            (&[], false, Prefer, None),
        ];
        for (offered, tls, wanted, expected) in table {
            let offered: Vec<String> = offered.iter().map(|name| (*name).to_owned()).collect();
            let chosen = mechanism(&offered, tls.then(|| vec![1]), wanted);
            assert_eq!(chosen.ok().map(|(name, _)| name), expected, "{offered:?} {tls} {wanted:?}");
        }
    }

    #[test]
    fn what_is_not_spoken_is_refused_by_name() {
        for (number, name) in [(7, "GSSAPI"), (9, "SSPI"), (2, "Kerberos"), (99, "number 99")] {
            let error = parse_request(i32::to_be_bytes(number).to_vec().into()).err().map(|error| error.to_string());
            assert!(error.as_ref().is_some_and(|error| error.contains(name)), "{error:?}");
        }
    }

    proptest! {
        #[test]
        fn no_request_makes_us_panic(body: Vec<u8>) {
            let _ = parse_request(body.into());
        }
    }
}
