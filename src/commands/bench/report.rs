//! What was measured, and what it means. Pure.

use std::fmt;
use std::time::Duration;

use serde_json::json;

use crate::telemetry::{Doing, FineLatencies, Metrics, human_bytes, human_count};

/// Above this share of the time the loop itself is the limit.
const BUSY: f64 = 0.7;
/// Above this share the brokers are.
const WAITS: f64 = 0.35;
/// Below this share of what was asked for the writers have not kept up.
const REACHED: f64 = 0.95;

/// Everything that was measured.
#[derive(Debug, Default)]
pub struct Report {
    pub payload_bytes: u32,
    pub backlog: Option<Backlog>,
    pub steady: Option<Steady>,
}

/// A backlog that was drained.
#[derive(Debug)]
pub struct Backlog {
    pub rows: u64,
    pub rows_per_commit: u32,
    pub wal_bytes: u64,
    /// From the start of the relay to the first acknowledgement that was seen.
    pub first_after: Duration,
    /// Acknowledged since then, in the time that it took.
    pub rows_measured: u64,
    pub took: Duration,
    /// Of all records: key, value, headers.
    pub bytes: u64,
    pub shares: Shares,
}

/// A steady load.
#[derive(Debug)]
pub struct Steady {
    pub asked: u32,
    /// Commits a second.
    pub reached: f64,
    /// Acknowledged a second.
    pub published: f64,
    pub seconds: u32,
    pub latencies: FineLatencies,
    /// The server's clock minus ours, in seconds: part of every latency.
    pub clock_skew: Option<f64>,
    pub shares: Shares,
}

/// What the relay's loop did, in seconds, then as shares of one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    pub work: f64,
    pub postgres: f64,
    pub kafka: f64,
}

impl Shares {
    /// Seconds so far.
    pub fn of(metrics: &Metrics) -> Shares {
        Shares {
            work: metrics.seconds(Doing::Work),
            postgres: metrics.seconds(Doing::WaitingForPostgres),
            kafka: metrics.seconds(Doing::WaitingForKafka),
        }
    }

    /// The shares of the time since `before`; nothing where no time has passed.
    pub fn since(self, before: Shares) -> Shares {
        let [work, postgres, kafka] =
            [self.work - before.work, self.postgres - before.postgres, self.kafka - before.kafka];
        let all = work + postgres + kafka;
        if all <= 0.0 {
            return Shares::default();
        }
        Shares { work: work / all, postgres: postgres / all, kafka: kafka / all }
    }
}

/// Who could not go faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Postgres,
    Walpost,
    Kafka,
}

impl Limit {
    /// Of a drain: whom the loop waited for, or itself.
    pub fn of(shares: Shares) -> Limit {
        if shares.kafka > WAITS && shares.kafka >= shares.work {
            Limit::Kafka
        } else if shares.work > BUSY {
            Limit::Walpost
        } else {
            Limit::Postgres
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Limit::Postgres => "postgres",
            Limit::Walpost => "walpost",
            Limit::Kafka => "kafka",
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Limit::Postgres => {
                "Postgres: walpost waited for its walsender, which decodes and sends on one core; fewer and larger \
                 transactions cost it less a row"
            }
            Limit::Walpost => "walpost: its loop was busy, on one core",
            Limit::Kafka => {
                "Kafka: the window was full of records that no broker had acknowledged; more partitions, brokers that \
                 are nearer, linger.ms and compression.type are what to try"
            }
        }
    }
}

impl Backlog {
    fn rows_a_second(&self) -> f64 {
        self.rows_measured as f64 / self.took.as_secs_f64().max(1e-9)
    }

    fn bytes_a_second(&self) -> f64 {
        self.rows_a_second() * self.bytes as f64 / self.rows.max(1) as f64
    }
}

impl Steady {
    fn kept_up(&self) -> bool {
        self.reached >= f64::from(self.asked) * REACHED
    }
}

impl Report {
    pub fn to_json(&self) -> String {
        let shares = |shares: &Shares| {
            json!({
                "work": rounded(shares.work), "waiting_for_postgres": rounded(shares.postgres),
                "waiting_for_kafka": rounded(shares.kafka),
            })
        };
        let backlog = self.backlog.as_ref().map(|backlog| {
            json!({
                "rows": backlog.rows,
                "rows_per_commit": backlog.rows_per_commit,
                "wal_bytes": backlog.wal_bytes,
                "first_after_seconds": rounded(backlog.first_after.as_secs_f64()),
                "seconds": rounded(backlog.took.as_secs_f64()),
                "rows_per_second": backlog.rows_a_second().round(),
                "bytes_per_second": backlog.bytes_a_second().round(),
                "loop": shares(&backlog.shares),
                "limit": Limit::of(backlog.shares).as_str(),
            })
        });
        let steady = self.steady.as_ref().map(|steady| {
            let millis = |share| rounded(steady.latencies.quantile(share).as_secs_f64() * 1e3);
            json!({
                "asked_per_second": steady.asked,
                "reached_per_second": rounded(steady.reached),
                "published_per_second": rounded(steady.published),
                "seconds": steady.seconds,
                "acknowledged": steady.latencies.count(),
                "latency_ms": {
                    "p50": millis(0.5), "p90": millis(0.9), "p99": millis(0.99), "p999": millis(0.999),
                    "max": rounded(steady.latencies.max().as_secs_f64() * 1e3),
                },
                "clock_skew_seconds": steady.clock_skew,
                "loop": shares(&steady.shares),
            })
        });
        json!({ "payload_bytes": self.payload_bytes, "backlog": backlog, "steady": steady }).to_string()
    }
}

/// Three digits behind the point are more than was measured.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(backlog) = &self.backlog {
            let count = |value: f64| human_count(value.round() as u64);
            writeln!(
                f,
                "\nbacklog of {} rows of about {} bytes, {} a commit ({} of log)",
                human_count(backlog.rows),
                self.payload_bytes,
                human_count(backlog.rows_per_commit.into()),
                human_bytes(backlog.wal_bytes)
            )?;
            writeln!(f, "  first row   {:.2} s after the relay was started", backlog.first_after.as_secs_f64())?;
            writeln!(
                f,
                "  drained     {} rows/s, {}/s of keys, values and headers",
                count(backlog.rows_a_second()),
                human_bytes(backlog.bytes_a_second().round() as u64)
            )?;
            writeln!(f, "  its loop    {}", backlog.shares)?;
            writeln!(f, "  the limit   {}", Limit::of(backlog.shares).meaning())?;
        }
        if let Some(steady) = &self.steady {
            let millis = |share| format!("{:.1}", steady.latencies.quantile(share).as_secs_f64() * 1e3);
            writeln!(f, "\n{} commits/s of one row for {} s", human_count(steady.asked.into()), steady.seconds)?;
            writeln!(f, "  written     {:.0} commits/s; acknowledged {:.0} rows/s", steady.reached, steady.published)?;
            writeln!(
                f,
                "  latency     p50 {} ms, p90 {} ms, p99 {} ms, p99.9 {} ms, max {:.1} ms: from commit to acknowledgement",
                millis(0.5),
                millis(0.9),
                millis(0.99),
                millis(0.999),
                steady.latencies.max().as_secs_f64() * 1e3
            )?;
            if let Some(skew) = steady.clock_skew.filter(|skew| skew.abs() >= 0.001) {
                writeln!(
                    f,
                    "  clocks      Postgres' is {:.1} ms ahead of this machine's, and the latencies are too small by that",
                    skew * 1e3
                )?;
            }
            writeln!(f, "  its loop    {}", steady.shares)?;
            if !steady.kept_up() {
                writeln!(f, "  the limit   Postgres: the writers did not reach the rate")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| (share * 100.0).round();
        write!(
            f,
            "{} % work, {} % waiting for Postgres, {} % waiting for Kafka",
            percent(self.work),
            percent(self.postgres),
            percent(self.kafka)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(work: f64, postgres: f64, kafka: f64) -> Shares {
        Shares { work, postgres, kafka }
    }

    #[test]
    fn the_limit_is_whom_the_loop_waited_for_or_itself() {
        assert_eq!(Limit::of(shares(0.3, 0.65, 0.05)), Limit::Postgres);
        assert_eq!(Limit::of(shares(0.9, 0.05, 0.05)), Limit::Walpost);
        assert_eq!(Limit::of(shares(0.4, 0.1, 0.5)), Limit::Kafka);
        assert_eq!(Limit::of(shares(0.62, 0.0, 0.38)), Limit::Postgres, "neither was busy nor waited for");
        assert_eq!(Limit::of(Shares::default()), Limit::Postgres);
        assert_eq!(shares(3.0, 1.0, 0.0).since(shares(1.0, 0.0, -1.0)), shares(0.5, 0.25, 0.25));
        assert_eq!(shares(1.0, 1.0, 1.0).since(shares(1.0, 1.0, 1.0)), Shares::default());
    }

    #[test]
    fn a_report_says_the_rate_the_percentiles_and_the_limit() {
        let mut latencies = FineLatencies::default();
        latencies.add(Duration::from_millis(2), 990);
        latencies.add(Duration::from_millis(20), 10);
        let report = Report {
            payload_bytes: 250,
            backlog: Some(Backlog {
                rows: 100_000,
                rows_per_commit: 100,
                wal_bytes: 50 << 20,
                first_after: Duration::from_millis(300),
                rows_measured: 50_000,
                took: Duration::from_millis(500),
                bytes: 40_000_000,
                shares: shares(0.3, 0.6, 0.1),
            }),
            steady: Some(Steady {
                asked: 1_000,
                reached: 800.0,
                published: 800.0,
                seconds: 10,
                latencies,
                clock_skew: Some(0.002),
                shares: shares(0.1, 0.9, 0.0),
            }),
        };
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(json["backlog"]["rows_per_second"], 100_000.0);
        assert_eq!(json["backlog"]["bytes_per_second"], 40_000_000.0);
        assert_eq!(json["backlog"]["limit"], "postgres");
        assert_eq!(json["steady"]["acknowledged"], 1_000);
        let p50 = json["steady"]["latency_ms"]["p50"].as_f64().unwrap();
        assert!((p50 - 2.0).abs() < 0.01, "{p50}");
        let text = report.to_string();
        for part in ["100,000 rows/s", "p50 2.0 ms", "p99.9 20.0 ms", "ahead", "the writers did not reach the rate"] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }
}
