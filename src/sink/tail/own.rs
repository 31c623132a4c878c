//! Which records are ours. Pure. A record counts only if it carries exactly one token, in the form that walpost writes,
//! exactly one message id, and no mark that it was republished from the table: those go by `id`, not in commit order.
//! Whatever else is in the topic is passed over.

use crate::config::Headers;
use crate::lsn::Lsn;
use crate::router::Token;

/// The headers by which a record of ours is told.
#[derive(Clone, Debug)]
pub struct OwnNames {
    id: String,
    token: String,
    /// Marks a record that was not published as it was committed; empty: none is marked.
    origin: String,
}

/// A record that walpost streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own<'a> {
    pub message_id: &'a [u8],
    pub commit_lsn: Lsn,
}

impl OwnNames {
    /// The error is the header that is switched off: `id` or `token`.
    pub fn of(headers: &Headers) -> Result<OwnNames, &'static str> {
        for (setting, name) in [("id", &headers.id), ("token", &headers.token)] {
            if name.is_empty() {
                return Err(setting);
            }
        }
        Ok(OwnNames { id: headers.id.clone(), token: headers.token.clone(), origin: headers.origin.clone() })
    }

    /// None: another writer's record, or one that was republished. Names are bytes, as other writers may write any.
    pub fn own<'a>(&self, headers: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>) -> Option<Own<'a>> {
        let (mut id, mut token) = (None, None);
        for (name, value) in headers {
            if name == self.origin.as_bytes() && !self.origin.is_empty() {
                return None;
            }
            let place = match name {
                _ if name == self.id.as_bytes() => &mut id,
                _ if name == self.token.as_bytes() => &mut token,
                _ => continue,
            };
            // walpost writes each once, and never null.
            if place.replace(value?).is_some() {
                return None;
            }
        }
        let token: Token = std::str::from_utf8(token?).ok()?.parse().ok()?;
        Some(Own { message_id: id?, commit_lsn: token.commit_lsn })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TOKEN: &str = "1750000000-00000016B374D848-000000FF";

    fn own(headers: &[(&str, Option<&str>)]) -> Option<(String, Lsn)> {
        let names = OwnNames { id: "id".into(), token: "token".into(), origin: "origin".into() };
        let headers = headers.iter().map(|(name, value)| (name.as_bytes(), value.map(str::as_bytes)));
        let own = names.own(headers)?;
        Some((String::from_utf8_lossy(own.message_id).into_owned(), own.commit_lsn))
    }

    #[test]
    fn our_record_is_known_by_token_and_id_among_other_headers() {
        let ours = Some(("m1".to_owned(), Lsn(0x16_B374_D848)));
        assert_eq!(own(&[("id", Some("m1")), ("eventType", Some("x")), ("token", Some(TOKEN)), ("a", None)]), ours);
        assert_eq!(own(&[("token", Some(TOKEN)), ("id", Some("m1"))]), ours);
    }

    #[test]
    fn whatever_else_there_is_is_passed_over() {
        let (id, token) = (("id", Some("m1")), ("token", Some(TOKEN)));
        let others: &[&[(&str, Option<&str>)]] = &[
            &[],
            &[id],
            &[token],
            &[id, ("token", None)],
            &[("id", None), token],
            &[id, token, ("origin", Some("recover"))],
            &[("origin", None), id, token],
            // Two of one name: nobody knows which counts.
            &[id, id, token],
            &[id, token, token],
            &[id, ("token", Some("1750000000-00000016b374d848-000000FF"))],
            &[id, ("token", Some("eyJhbGciOiJIUzI1NiJ9.e30.x"))],
            &[("ID", Some("m1")), ("Token", Some(TOKEN))],
        ];
        for headers in others {
            assert_eq!(own(headers), None, "{headers:?}");
        }
    }

    #[test]
    fn the_headers_have_the_names_that_are_configured() {
        let mut headers = crate::config::Config::default().headers;
        headers.id = "message_id".into();
        headers.token = "stream-token".into();
        let names = OwnNames::of(&headers).expect("both are on");
        let written: [(&[u8], Option<&[u8]>); 2] =
            [(b"message_id", Some(b"m1")), (b"stream-token", Some(TOKEN.as_bytes()))];
        assert!(names.own(written.into_iter()).is_some());
        headers.id = String::new();
        assert_eq!(OwnNames::of(&headers).err(), Some("id"));
    }

    proptest! {
        #[test]
        fn every_token_that_walpost_writes_is_read(epoch: u64, lsn: u64, ordinal: u32) {
            let token = Token { epoch, commit_lsn: Lsn(lsn), ordinal }.to_bytes();
            let text = std::str::from_utf8(&token).expect("text");
            prop_assert_eq!(own(&[("id", Some("m")), ("token", Some(text))]), Some(("m".to_owned(), Lsn(lsn))));
        }

        #[test]
        fn no_bytes_make_it_panic(
            headers in proptest::collection::vec(
                (prop_oneof![Just(b"id".to_vec()), Just(b"token".to_vec()), proptest::collection::vec(any::<u8>(), 0..9)],
                 proptest::option::of(proptest::collection::vec(any::<u8>(), 0..60))),
                0..5,
            ),
        ) {
            let names = OwnNames { id: "id".into(), token: "token".into(), origin: "origin".into() };
            names.own(headers.iter().map(|(name, value)| (name.as_slice(), value.as_deref())));
        }
    }
}
