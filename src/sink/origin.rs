//! Whence an address comes at which no connection can be made: from the settings, or from the cluster. Pure.

/// The error of a connection, with whence its address comes where nobody has configured it: the brokers that were named
/// answer, and lead elsewhere.
pub fn with_origin(error: String, brokers: &str) -> String {
    // librdkafka begins with `host:port/id`, and `bootstrap` in place of the id where the address was given to it.
    let given = error.split_once(": ").and_then(|(broker, _)| broker.rsplit_once('/'));
    match given {
        Some((address, id)) if id.parse::<i32>().is_ok() && !names(brokers, address) => {
            format!("{error} (the cluster leads to this address: see advertised.listeners of broker {id})")
        }
        _ => error,
    }
}

/// Whether `kafka.brokers` has this address.
fn names(brokers: &str, address: &str) -> bool {
    let mut hosts = brokers.split(',').map(|broker| broker.trim().rsplit("//").next().unwrap_or_default());
    hosts.any(|host| host == address || format!("{host}:9092") == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_nobody_configured_is_said_to_come_from_the_cluster() {
        let failed = |broker: &str| {
            let error = format!("{broker}: Connect to ipv4#10.0.0.1:9092 failed: timed out");
            with_origin(error, "PLAINTEXT://kafka:9092, other")
        };
        assert!(failed("kafka.internal:9093/2").contains("advertised.listeners of broker 2"));
        for configured in ["kafka:9092/1", "other:9092/1", "kafka:9092/bootstrap"] {
            assert!(!failed(configured).contains("advertised"), "{configured}");
        }
    }
}
