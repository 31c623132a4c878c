//! The row's `headers` column: a JSON object whose top-level members become Kafka headers, in their order, repeated
//! names too. A value is never printed anew: strings without their quotes, `null` as a null value, and everything
//! else (numbers above all) exactly as it stands in the text.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Header;
use super::intern::Names;
use crate::outbox::{Poison, PoisonReason, Shown};

/// Adds a header for each member of `json`, the text of the column `column`.
pub fn append(
    json: &Bytes,
    column: &str,
    reserved: &[Arc<str>],
    names: &mut Names,
    headers: &mut Vec<Header>,
) -> Result<(), Poison> {
    // What most rows have, without a parser.
    if json.as_ref() == b"{}" {
        return Ok(());
    }
    let kind = match json.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => None,
        Some(b'[') => Some("an array (an empty PHP array is written []; cast it to an object)"),
        Some(b'"') => Some("a string"),
        Some(b'n') => Some("null"),
        Some(b't' | b'f') => Some("a boolean"),
        Some(b'-' | b'0'..=b'9') => Some("a number"),
        Some(_) => Some("no JSON"),
        None => Some("empty"),
    };
    if let Some(kind) = kind {
        return Err(Poison::new(
            PoisonReason::BadHeaders,
            format!("column \"{column}\" must be a JSON object of headers, but is {kind}; write {{}} for no headers"),
        ));
    }
    let mut refused = None;
    let members = Members { json, column, reserved, names, headers, refused: &mut refused };
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let read = members.deserialize(&mut deserializer).and_then(|()| deserializer.end());
    if let Err(error) = read {
        return Err(Poison::new(
            PoisonReason::BadHeaders,
            format!("column \"{column}\" cannot be read as a JSON object of headers: {error}"),
        ));
    }
    refused.map_or(Ok(()), Err)
}

struct Members<'a> {
    json: &'a Bytes,
    column: &'a str,
    reserved: &'a [Arc<str>],
    names: &'a mut Names,
    headers: &'a mut Vec<Header>,
    /// Why a member that is sound JSON cannot be a header. The parser's own error has no room for it.
    refused: &'a mut Option<Poison>,
}

impl Members<'_> {
    fn header(&mut self, name: &str, value: &RawValue) -> Result<Header, Poison> {
        let column = self.column;
        if self.reserved.iter().any(|reserved| **reserved == *name) {
            return Err(Poison::new(
                PoisonReason::ReservedHeader,
                format!(
                    "column \"{column}\" has a member {}, which is the name of a header that walpost writes itself; \
                     rename the member, or walpost's header with headers.*",
                    Shown(name.as_bytes())
                ),
            ));
        }
        // The client takes names as C strings.
        if name.contains('\0') {
            return Err(Poison::new(
                PoisonReason::BadHeaders,
                format!(
                    "column \"{column}\" has a member {} with the character U+0000 in its name, which a header cannot \
                     have",
                    Shown(name.as_bytes())
                ),
            ));
        }
        Ok(Header { name: self.names.intern(name), value: self.value(name, value.get())? })
    }

    fn value(&self, name: &str, text: &str) -> Result<Option<Bytes>, Poison> {
        if text == "null" {
            return Ok(None);
        }
        match text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
            None => Ok(Some(self.part(text))),
            Some(plain) if !plain.contains('\\') => Ok(Some(self.part(plain))),
            Some(_) => match serde_json::from_str::<String>(text) {
                Ok(unescaped) => Ok(Some(Bytes::from(unescaped))),
                // Only half of a surrogate pair (\ud800) is left: JSON can write it, but it is no character and so
                // has no bytes.
                Err(error) => Err(Poison::new(
                    PoisonReason::BadHeaders,
                    format!(
                        "column \"{}\": the text of member {} cannot be written as UTF-8 ({error})",
                        self.column,
                        Shown(name.as_bytes())
                    ),
                )),
            },
        }
    }

    /// `part` lies in the column's text, so it need not be copied.
    fn part(&self, part: &str) -> Bytes {
        self.json.slice_ref(part.as_bytes())
    }
}

impl<'de> DeserializeSeed<'de> for Members<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Members<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<(), A::Error> {
        while let Some(name) = members.next_key_seed(Name)? {
            let value = members.next_value::<&'de RawValue>()?;
            match self.header(&name, value) {
                Ok(header) => self.headers.push(header),
                // The rest is read all the same: whether the text is JSON at all is told first.
                Err(poison) => _ = self.refused.get_or_insert(poison),
            }
        }
        Ok(())
    }
}

/// A member's name, borrowed where it has no escapes.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(name.to_owned()))
    }
}
