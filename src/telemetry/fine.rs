//! Latencies with their percentiles, for a measurement: the buckets of a metric are too coarse.

use std::time::Duration;

use hdrhistogram::Histogram;

/// An hour, in microseconds; what lasted longer counts as an hour.
const LONGEST: u64 = 3_600_000_000;
/// Three digits: a thousandth of each value.
const DIGITS: u8 = 3;

/// Latencies in microseconds. Takes some 200 kB, however many there are.
#[derive(Clone, Debug)]
pub struct FineLatencies(Histogram<u64>);

impl Default for FineLatencies {
    fn default() -> Self {
        FineLatencies(Histogram::new_with_max(LONGEST, DIGITS).expect("the bounds are good"))
    }
}

impl FineLatencies {
    /// `count` latencies of so long.
    pub fn add(&mut self, latency: Duration, count: u64) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(LONGEST);
        self.0.saturating_record_n(micros, count);
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that this share (0 to 1) of all did not exceed; zero where there is none.
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_micros(self.0.value_at_quantile(share))
    }

    pub fn max(&self) -> Duration {
        Duration::from_micros(self.0.max())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_exact_to_a_thousandth() {
        let mut latencies = FineLatencies::default();
        for millis in 1..=1_000 {
            latencies.add(Duration::from_millis(millis), 10);
        }
        assert_eq!(latencies.count(), 10_000);
        for (share, millis) in [(0.5, 500.0), (0.99, 990.0), (0.999, 999.0)] {
            let found = latencies.quantile(share).as_secs_f64() * 1e3;
            assert!((found / millis - 1.0_f64).abs() < 0.002, "{share}: {found}");
        }
        latencies.add(Duration::MAX, 1);
        assert!(latencies.max() >= Duration::from_secs(3_590));
        assert_eq!(FineLatencies::default().quantile(0.5), Duration::ZERO);
    }
}
