//! The two forms in which libpq takes an address, as text: `postgres://user:password@host:port/database?key=value`
//! and `key=value key='va lue'`. Gives names and values in order; what they mean is `address`'s matter, and so are the
//! tests.

use crate::postgres::address::AddressError;

/// Splits an address into its settings, in order.
pub(crate) fn pairs(text: &str) -> Result<Vec<(String, String)>, AddressError> {
    let text = text.trim();
    if let Some((scheme, rest)) = text.split_once("://").filter(|(scheme, _)| !scheme.contains(['=', ' ', '\''])) {
        return match scheme {
            "postgres" | "postgresql" => url_pairs(rest),
            _ => Err(AddressError::Scheme(scheme.to_owned())),
        };
    }
    if !text.is_empty() && !text.contains('=') {
        return Err(AddressError::Form);
    }
    key_value_pairs(text)
}

fn key_value_pairs(text: &str) -> Result<Vec<(String, String)>, AddressError> {
    let mut pairs = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=').ok_or(AddressError::KeyValue)?;
        let key = key.trim_end();
        if key.is_empty() || key.contains(char::is_whitespace) {
            return Err(AddressError::KeyValue);
        }
        let after = after.trim_start();
        let quoted = after.starts_with('\'');
        let mut value = String::new();
        let mut chars = after.char_indices().skip(usize::from(quoted));
        let end = loop {
            match chars.next() {
                Some((_, '\\')) => value.extend(chars.next().map(|(_, escaped)| escaped)),
                Some((at, '\'')) if quoted => break at + 1,
                Some((at, c)) if !quoted && c.is_whitespace() => break at,
                Some((_, c)) => value.push(c),
                None if quoted => return Err(AddressError::Quote),
                None => break after.len(),
            }
        };
        pairs.push((key.to_owned(), value));
        let remaining = after.get(end..).unwrap_or_default();
        rest = remaining.trim_start();
    }
    Ok(pairs)
}

fn url_pairs(rest: &str) -> Result<Vec<(String, String)>, AddressError> {
    let mut pairs = Vec::new();
    let mut add = |key: &str, value: &str| -> Result<(), AddressError> {
        if !value.is_empty() {
            pairs.push((key.to_owned(), percent_decoded(key, value)?));
        }
        Ok(())
    };
    let (rest, parameters) = match rest.find(['@', '/']).map(|at| rest.split_at(at)) {
        // A `?` before the first `@` belongs to the password.
        Some((login, after)) if after.starts_with('@') => {
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            add("user", user)?;
            add("password", password)?;
            after.get(1..).unwrap_or_default().split_once('?').unwrap_or((after.get(1..).unwrap_or_default(), ""))
        }
        _ => rest.split_once('?').unwrap_or((rest, "")),
    };
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    // What is left of a password that holds a bare `@` or `/`.
    if authority.contains('@') || database.contains('@') {
        return Err(AddressError::Authority);
    }
    let (mut hosts, mut ports) = (Vec::new(), Vec::new());
    for server in authority.split(',') {
        let (host, port) = match server.strip_prefix('[') {
            Some(literal) => {
                let (ip, after) = literal.split_once(']').ok_or(AddressError::Authority)?;
                match after.strip_prefix(':') {
                    Some(port) => (ip, port),
                    None if after.is_empty() => (ip, ""),
                    None => return Err(AddressError::Authority),
                }
            }
            None => server.split_once(':').unwrap_or((server, "")),
        };
        if !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(AddressError::Authority);
        }
        hosts.push(host);
        ports.push(port);
    }
    add("host", &hosts.join(","))?;
    if ports.iter().any(|port| !port.is_empty()) {
        add("port", &ports.join(","))?;
    }
    add("dbname", database)?;
    for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
        let (key, value) = parameter.split_once('=').ok_or(AddressError::KeyValue)?;
        let key = percent_decoded("a name", key)?;
        add(&key, value)?;
    }
    Ok(pairs)
}

fn percent_decoded(what: &str, text: &str) -> Result<String, AddressError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(AddressError::Percent) };
        bytes.push((high * 16 + low) as u8);
    }
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err(AddressError::Text(what.to_owned())),
    }
}
