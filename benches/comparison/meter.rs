//! What processes used, as Linux tells it in `/proc`.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use super::kit::children_of;
use super::servers::Servers;

/// Seconds since 1970, of the clock by which the broker stamps records.
pub fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_secs_f64()
}

/// User and system CPU seconds of a process; None when it is gone.
pub fn cpu_s(pid: i32) -> Option<f64> {
    ticks(pid, 11..13)
}

/// Of a postmaster with all its children, those included that have ended.
pub fn server_cpu_s(postmaster: i32) -> f64 {
    let living: f64 = children_of(postmaster).into_iter().filter_map(cpu_s).sum();
    ticks(postmaster, 11..15).unwrap_or(0.0) + living
}

fn ticks(pid: i32, fields: std::ops::Range<usize>) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let sum: f64 = rest.get(fields)?.iter().filter_map(|field| field.parse::<f64>().ok()).sum();
    // SAFETY: sysconf only reads a constant of the system.
    Some(sum / unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64)
}

/// The highest resident set of a process so far, in MB (10^6 bytes).
pub fn peak_rss_mb(pid: i32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? * 1024.0 / 1e6)
}

/// A reading of the counters; the difference of two is what was used between them.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub time_s: f64,
    pub relay_cpu_s: f64,
    pub postgres_cpu_s: f64,
    pub kafka_cpu_s: f64,
    pub wal_bytes: f64,
    pub commits: f64,
    pub scans: f64,
    /// Executions of statements that name the table, other than the writers' INSERT.
    pub statements: f64,
}

impl Reading {
    pub fn take(servers: &Servers, relay: Option<i32>, table: &str) -> Reading {
        let row = servers.sql.rows(&format!(
            "select pg_current_wal_lsn() - '0/0'::pg_lsn, xact_commit, coalesce((select seq_scan + coalesce(idx_scan, 0) \
             from pg_stat_user_tables where relname = '{table}'), 0), \
             coalesce((select sum(calls) from pg_stat_statements where query ~* '\\m{table}\\M' \
             and query !~* '^insert into {table} '), 0) \
             from pg_stat_database where datname = current_database()"
        ));
        let number = |column: usize| row[0][column].as_deref().and_then(|text| text.parse().ok()).unwrap_or(0.0);
        Reading {
            time_s: now_s(),
            relay_cpu_s: relay.and_then(cpu_s).unwrap_or(0.0),
            postgres_cpu_s: server_cpu_s(servers.postgres.pid()),
            kafka_cpu_s: cpu_s(servers.kafka.brokers()[0].pid()).unwrap_or(0.0),
            wal_bytes: number(0),
            commits: number(1),
            scans: number(2),
            statements: number(3),
        }
    }

    pub fn since(&self, start: &Reading) -> Reading {
        Reading {
            time_s: self.time_s - start.time_s,
            relay_cpu_s: self.relay_cpu_s - start.relay_cpu_s,
            postgres_cpu_s: self.postgres_cpu_s - start.postgres_cpu_s,
            kafka_cpu_s: self.kafka_cpu_s - start.kafka_cpu_s,
            wal_bytes: self.wal_bytes - start.wal_bytes,
            commits: self.commits - start.commits,
            scans: self.scans - start.scans,
            statements: self.statements - start.statements,
        }
    }
}
