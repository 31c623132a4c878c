//! How values are spelled: durations, sizes, addresses, names. Pure; an error says what is wrong and what is right.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::TopicsCreate;
use super::problem::{alternatives, nearest, quoted};
use crate::names::TableName;

/// `500ms`, `25s`, `1m`, `1h`. A number alone is refused: it is seconds for some programs and milliseconds for others.
pub fn duration(text: &str, min: Duration, max: Duration) -> Result<Duration, String> {
    let (number, unit) = split_unit(text);
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "" if !number.is_empty() => return Err(format!("{} has no unit: write {number}s or {number}ms", quoted(text))),
        _ => {
            return Err(format!("{} is not a duration such as 500ms, 25s, 1m or 1h", quoted(text)));
        }
    };
    let milliseconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ms));
    let Some(milliseconds) = milliseconds else {
        return Err(format!("{} is not a duration such as 500ms, 25s, 1m or 1h (whole numbers only)", quoted(text)));
    };
    let value = Duration::from_millis(milliseconds);
    if value < min || value > max {
        return Err(format!("{} is out of bounds: {} to {}", quoted(text), duration_text(min), duration_text(max)));
    }
    Ok(value)
}

/// A duration as [`duration`] reads it.
pub fn duration_text(value: Duration) -> String {
    match value.as_millis() {
        0 => "0s".to_owned(),
        ms if ms % 3_600_000 == 0 => format!("{}h", ms / 3_600_000),
        ms if ms % 60_000 == 0 => format!("{}m", ms / 60_000),
        ms if ms % 1_000 == 0 => format!("{}s", ms / 1_000),
        ms => format!("{ms}ms"),
    }
}

/// `32MiB`, `64MB`, or a number of bytes. Units of both kinds, in any case; a bare `M` could be either and is refused.
pub fn size(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let (number, unit) = split_unit(text);
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "kib" => 1 << 10,
        "mb" => 1_000_000,
        "mib" => 1 << 20,
        "gb" => 1_000_000_000,
        "gib" => 1 << 30,
        "k" | "m" | "g" if !number.is_empty() => {
            let unit = unit.to_ascii_uppercase();
            return Err(format!("{} is ambiguous: write {number}{unit}iB or {number}{unit}B", quoted(text)));
        }
        _ => {
            return Err(format!("{} is not a size such as 32MiB, 64MB or a number of bytes", quoted(text)));
        }
    };
    let Some(value) = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)) else {
        return Err(format!("{} is not a size such as 32MiB, 64MB or a number of bytes", quoted(text)));
    };
    if value < min || value > max {
        return Err(format!("{} is out of bounds: {} to {}", quoted(text), size_text(min), size_text(max)));
    }
    Ok(value)
}

/// A size as [`size`] reads it.
pub fn size_text(value: u64) -> String {
    match value {
        v if v >= 1 << 30 && v % (1 << 30) == 0 => format!("{}GiB", v >> 30),
        v if v >= 1 << 20 && v % (1 << 20) == 0 => format!("{}MiB", v >> 20),
        v if v >= 1 << 10 && v % (1 << 10) == 0 => format!("{}KiB", v >> 10),
        v => v.to_string(),
    }
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim_start())
}

pub fn integer(text: &str, min: u64, max: u64) -> Result<u64, String> {
    match text.trim().parse::<u64>() {
        Ok(value) if (min..=max).contains(&value) => Ok(value),
        Ok(_) => Err(format!("{} is out of bounds: {min} to {max}", quoted(text))),
        Err(_) => Err(format!("{} is not a whole number from {min} to {max}", quoted(text))),
    }
}

/// The one of `names` that is meant, or the sentence that lists them.
pub fn choice<'a>(text: &str, names: impl Iterator<Item = &'a str> + Clone) -> Result<&'a str, String> {
    if let Some(name) = names.clone().find(|name| *name == text) {
        return Ok(name);
    }
    let hint = nearest(&text.to_ascii_lowercase(), names.clone())
        .map(|name| format!("; did you mean {name}?"))
        .unwrap_or_default();
    Err(format!("{} is not one of {}{hint}", quoted(text), alternatives(names)))
}

/// `off`, an IP address with a port, `localhost:9464`, or `:9464` for every IPv4 interface.
pub fn listen(text: &str) -> Result<Option<SocketAddr>, String> {
    if text == "off" {
        return Ok(None);
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(Some(address));
    }
    let wrong =
        || format!("{} is not `off` or an address such as 127.0.0.1:9464, localhost:9464 or :9464", quoted(text));
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    match host {
        "" => Ok(Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port))),
        "localhost" => Ok(Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))),
        _ => Err(wrong()),
    }
}

/// `host:port`, separated by commas, each as librdkafka takes it: a port and a protocol in front are optional.
pub fn brokers(text: &str) -> Result<String, String> {
    let brokers: Vec<&str> = text.split(',').map(str::trim).collect();
    brokers.iter().try_for_each(|one| broker(one).map_err(|wrong| format!("{} {wrong}", quoted(one))))?;
    Ok(brokers.join(","))
}

fn broker(text: &str) -> Result<(), &'static str> {
    const FORM: &str = "is not host:port; write a comma-separated list such as kafka-1:9092,kafka-2:9092";
    let address = match text.split_once("://") {
        None => text,
        Some((protocol, address)) => {
            const PROTOCOLS: [&str; 4] = ["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"];
            if !PROTOCOLS.contains(&protocol.to_ascii_lowercase().as_str()) {
                return Err("starts with a protocol that is not PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; \
                            leave it out: the property security.protocol decides");
            }
            address
        }
    };
    let (host, port) = match address.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, Some(rest.strip_prefix(':').ok_or(FORM)?)),
            None => return Err(FORM),
        },
        None => match address.split_once(':') {
            Some((_, port)) if port.contains(':') => return Err("needs brackets around an IPv6 address: [::1]:9092"),
            Some((host, port)) => (host, Some(port)),
            None => (address, None),
        },
    };
    if host.is_empty() || host.chars().any(|c| c.is_whitespace() || c == '/' || c == '@') {
        return Err(FORM);
    }
    match port.map(str::parse::<u16>) {
        None | Some(Ok(1..)) => Ok(()),
        Some(_) => Err("has a port that is not a number from 1 to 65535"),
    }
}

/// `broker`, `never`, or `partitions=6,replication=3`.
pub fn topics_create(text: &str) -> Result<TopicsCreate, String> {
    match text {
        "broker" => return Ok(TopicsCreate::Broker),
        "never" => return Ok(TopicsCreate::Never),
        _ => {}
    }
    if !text.contains('=') {
        let hint = nearest(text, ["broker", "never"]).map(|name| format!("; did you mean {name}?"));
        let hint = hint.unwrap_or_default();
        return Err(format!("{} is not broker, never or partitions=6,replication=3{hint}", quoted(text)));
    }
    let parts = text.split(',').map(|part| match part.split_once('=') {
        Some((name, value)) => Ok((name.trim(), value.trim())),
        None => Err(format!("{} is not partitions=6,replication=3", quoted(text))),
    });
    topics_shape(parts.collect::<Result<Vec<_>, _>>()?)
}

/// The shape of topics that walpost creates, from its two numbers by name.
pub fn topics_shape<'a>(parts: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<TopicsCreate, String> {
    let (mut partitions, mut replication) = (None, None);
    for (name, value) in parts {
        let (slot, max) = match name {
            "partitions" => (&mut partitions, u16::MAX),
            "replication" => (&mut replication, i16::MAX as u16),
            _ => return Err(format!("{} is neither partitions nor replication", quoted(name))),
        };
        if slot.is_some() {
            return Err(format!("{name} is given twice"));
        }
        let number = integer(value, 1, max.into()).map_err(|wrong| format!("{name}: {wrong}"))?;
        *slot = u16::try_from(number).ok();
    }
    match (partitions, replication) {
        (Some(partitions), Some(replication)) => Ok(TopicsCreate::Create { partitions, replication }),
        (None, _) => Err("partitions is missing: write both, partitions=6,replication=3".to_owned()),
        (_, None) => Err("replication is missing: write both, partitions=6,replication=3".to_owned()),
    }
}

/// Postgres' own rule for the names of replication slots.
pub fn slot_name(text: &str) -> Result<(), String> {
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    if !(1..=63).contains(&text.len()) || !text.bytes().all(legal) {
        return Err(format!("{} cannot be a slot's name: 1 to 63 of a-z, 0-9 and _", quoted(text)));
    }
    Ok(())
}

/// A name of SQL, unquoted: Postgres keeps 63 bytes and would cut the rest off silently.
pub fn sql_name(text: &str) -> Result<(), String> {
    if !(1..=63).contains(&text.len()) || text.contains('\0') {
        return Err(format!("{} cannot be a name in Postgres: 1 to 63 bytes", quoted(text)));
    }
    Ok(())
}

/// A table's name as SQL writes it, with or without a schema.
pub fn table_name(text: &str) -> Result<(), String> {
    TableName::parse(text).map(drop).map_err(|error| error.to_string())
}

pub fn printable(text: &str) -> Result<(), String> {
    if text.trim().is_empty() {
        return Err("is empty".to_owned());
    }
    if text.chars().any(char::is_control) {
        return Err(format!("{} holds a control character", quoted(text)));
    }
    Ok(())
}

/// A header's name; empty switches the header off.
pub fn header_name(text: &str) -> Result<(), String> {
    if text.is_empty() { Ok(()) } else { printable(text) }
}

/// Comma-separated directives, each a level or `target=level`. A bare word that is no level would be taken for a target
/// by the logger, which silences all others: most likely a misspelt level, so it is refused unless it is one of ours.
pub fn log_filter(text: &str) -> Result<(), String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    for directive in text.split(',').map(str::trim) {
        let level = match directive.rsplit_once('=') {
            Some((target, level)) if !target.is_empty() => level,
            None if directive.starts_with("walpost") => continue,
            _ => directive,
        };
        let level = level.to_ascii_lowercase();
        if !LEVELS.contains(&level.as_str()) {
            let hint = nearest(&level, LEVELS).map(|name| format!("; did you mean {name}?")).unwrap_or_default();
            let (level, levels) = (quoted(&level), alternatives(LEVELS));
            return Err(format!(
                "{level} is not a level ({levels}), nor target=level such as walpost=debug,info{hint}"
            ));
        }
    }
    Ok(())
}

/// Whether an address of Postgres carries a password.
pub fn holds_password(address: &str) -> bool {
    if let Some((_, rest)) = address.split_once("://") {
        let (before_query, query) = rest.split_once('?').unwrap_or((rest, ""));
        let authority = before_query.split('/').next().unwrap_or_default();
        let user = authority.rsplit_once('@').map(|(user, _)| user).unwrap_or_default();
        let in_user = user.split_once(':').is_some_and(|(_, password)| !password.is_empty());
        return in_user || query.split('&').any(|part| part.starts_with("password="));
    }
    address.split("password").skip(1).any(|rest| rest.trim_start().starts_with('='))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn durations_have_a_unit() {
        let read = |text| duration(text, Duration::ZERO, HOUR);
        assert_eq!(read("25s"), Ok(Duration::from_secs(25)));
        assert_eq!(read("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(read("1 m"), Ok(Duration::from_secs(60)));
        assert_eq!(read("1h"), Ok(HOUR));
        assert_eq!(read("0s"), Ok(Duration::ZERO));
        assert!(read("25").unwrap_err().contains("write 25s or 25ms"));
        for wrong in ["", "s", "1.5s", "-1s", "25 sec", "2h", "99999999999999999999s", "99999999999999999h"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_have_units_of_both_kinds() {
        let read = |text| size(text, 0, u64::MAX);
        assert_eq!(read("5"), Ok(5));
        assert_eq!(read("32MiB"), Ok(32 << 20));
        assert_eq!(read("64mb"), Ok(64_000_000));
        assert_eq!(read("1 GiB"), Ok(1 << 30));
        assert!(read("32M").unwrap_err().contains("32MiB or 32MB"));
        for wrong in ["", "MiB", "1.5MiB", "-1", "1TB", "99999999999999999999", "99999999999GiB"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_admin_server_listens_where_it_is_told() {
        assert_eq!(listen("off"), Ok(None));
        assert_eq!(listen(":9464"), Ok(Some(([0, 0, 0, 0], 9464).into())));
        assert_eq!(listen("localhost:1"), Ok(Some(([127, 0, 0, 1], 1).into())));
        assert!(listen("[::1]:9464").is_ok_and(|address| address.is_some_and(|address| address.is_ipv6())));
        for wrong in ["", "9464", "example.org:80", "127.0.0.1", ":", ":99999", "OFF"] {
            assert!(listen(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn brokers_are_hosts_with_ports() {
        assert_eq!(brokers("a:9092, b:9092"), Ok("a:9092,b:9092".to_owned()));
        for right in ["localhost", "10.0.0.1:9092", "[::1]:9092", "[::1]", "SSL://h:1", "sasl_ssl://h:1"] {
            assert!(brokers(right).is_ok(), "{right}");
        }
        for wrong in
            ["", "a:9092,", ",a", "a:0", "a:99999", "a:x", "a b:1", ":9092", "::1:9092", "http://h:1", "[::1", "h/p"]
        {
            assert!(brokers(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn topics_are_created_by_the_broker_by_nobody_or_with_a_shape() {
        assert_eq!(topics_create("broker"), Ok(TopicsCreate::Broker));
        assert_eq!(topics_create("never"), Ok(TopicsCreate::Never));
        let shape = TopicsCreate::Create { partitions: 6, replication: 3 };
        assert_eq!(topics_create("partitions=6,replication=3"), Ok(shape));
        assert_eq!(topics_create("replication = 3, partitions = 6"), Ok(shape));
        for wrong in [
            "",
            "always",
            "partitions=6",
            "partitions=0,replication=1",
            "partitions=6,replication=99999",
            "partitions=6,partitions=6,replication=1",
            "partition=6,replication=3",
            "6,3",
            "partitions=6,3",
        ] {
            assert!(topics_create(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_follow_the_rules_of_postgres() {
        assert!(slot_name(&"a".repeat(63)).is_ok() && slot_name("walpost_2").is_ok());
        for wrong in ["", "Walpost", "wal-post", "wal post", "é", &"a".repeat(64)] {
            assert!(slot_name(wrong).unwrap_err().contains("1 to 63 of a-z, 0-9 and _"), "{wrong}");
        }
        assert!(sql_name("Odd Name").is_ok());
        assert!(table_name("app.\"Odd Name\"").is_ok());
        assert!(table_name("Odd Name").unwrap_err().contains("quote odd parts"));
        assert!(sql_name("").is_err() && sql_name(&"é".repeat(32)).is_err());
    }

    #[test]
    fn a_misspelt_level_is_no_target() {
        for right in ["info", "INFO", "off", "walpost=debug,info", "walpost", "walpost::relay=trace", "a=debug, b=warn"]
        {
            assert!(log_filter(right).is_ok(), "{right}");
        }
        for wrong in ["", "inof", "hyper", "walpost=inof", "=info", "info,"] {
            assert!(log_filter(wrong).is_err(), "{wrong}");
        }
        assert!(log_filter("walpost=debgu").unwrap_err().contains("did you mean debug?"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,40}") {
            let _ = (duration(&text, Duration::ZERO, HOUR), size(&text, 0, u64::MAX), integer(&text, 0, u64::MAX));
            let _ = (listen(&text), brokers(&text), topics_create(&text), log_filter(&text));
            let _ = (slot_name(&text), sql_name(&text), table_name(&text), header_name(&text), holds_password(&text));
        }

        #[test]
        fn what_is_printed_reads_back(value in 0..3_600_000u64) {
            let value_duration = Duration::from_millis(value);
            prop_assert_eq!(duration(&duration_text(value_duration), Duration::ZERO, HOUR), Ok(value_duration));
            prop_assert_eq!(size(&size_text(value << 10), 0, u64::MAX), Ok(value << 10));
        }
    }
}
