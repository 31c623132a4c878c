//! Rows: a backlog that is made at once, or one-row commits at a rate by pgbench. `at` in a payload is the server's clock in
//! microseconds while the row is inserted, so that a latency counts from before the commit.

use std::fs;
use std::process::{Command, Stdio};

use super::kit::{Process, new_dir, seconds};
use super::servers::Servers;
use super::spec::{Spec, USUAL_PAYLOAD};

/// Transactions that pgbench has open at once.
const CLIENTS: u64 = 16;

/// The SQL expression of a payload, of which `n` is the number.
fn payload(bytes: u64, n: &str) -> String {
    let at = "'at', (extract(epoch from clock_timestamp()) * 1000000)::bigint";
    if bytes == USUAL_PAYLOAD {
        return format!(
            "jsonb_build_object({at}, 'order', {n}, 'status', 'placed', 'currency', 'EUR', 'total_cents', {n} % 99991, \
             'customer', md5({n}::text), 'note', md5(({n} + 1)::text) || ' ' || md5(({n} + 2)::text))"
        );
    }
    // `{"at": 1796058220000000, "note": ""}` is what surrounds the padding.
    let padding = bytes.saturating_sub(38).max(1);
    let pieces = padding.div_ceil(32);
    format!(
        "jsonb_build_object({at}, 'note', (select left(string_agg(md5(({n} * 4096 + piece)::text), ''), {padding}) \
         from generate_series(1, {pieces}) piece))"
    )
}

fn insert(spec: &Spec, n: &str, from: &str) -> String {
    let aggregate = if spec.topics == 1 { "'order'".to_owned() } else { format!("'order' || ({n} % {})", spec.topics) };
    format!(
        "insert into {} (aggregate_type, aggregate_id, event_type, payload) select {aggregate}, \
         'order-' || ({n} * 7919 % {}), 'OrderPlaced', {} {from}",
        spec.peer.table(),
        spec.keys,
        payload(spec.payload, n)
    )
}

/// Commits the rows of a backlog (asynchronously: the same log, sooner there), and leaves nothing to be done behind them.
pub fn backlog(servers: &Servers, spec: &Spec) {
    let (rows, per_commit, table) = (spec.rows, spec.per_commit, spec.peer.table());
    let series = format!(
        "from generate_series((batch * {per_commit} + 1)::bigint, least((batch + 1) * {per_commit}, {rows})::bigint) n"
    );
    servers.sql.execute("set synchronous_commit = off");
    servers.sql.execute(&format!(
        "do $do$ begin for batch in 0::bigint .. ({rows}::bigint - 1) / {per_commit} loop {}; commit; end loop; end $do$",
        insert(spec, "n", &series)
    ));
    servers.sql.execute("reset synchronous_commit");
    servers.sql.execute(&format!("vacuum analyze {table}"));
    servers.sql.execute("checkpoint");
}

/// One row, committed when this returns.
pub fn one_row(servers: &Servers, spec: &Spec) {
    servers.sql.execute(&insert(spec, "1", ""));
}

/// pgbench at the measurement's rate for that long, each commit waiting for its log on disk.
pub fn steady(servers: &Servers, spec: &Spec, duration_s: u64) -> Process {
    let dir = new_dir("pgbench");
    let script = dir.join("script.sql");
    let text = format!("\\set n random(1, 1000000000)\n{};\n", insert(spec, ":n::bigint", ""));
    fs::write(&script, text).expect("a script for pgbench");
    let output = fs::File::create(dir.join("output")).expect("a file for pgbench's output");
    let mut command = Command::new("pgbench");
    command.args(["-n", "-M", "prepared", "-j", "1", "-c", &CLIENTS.to_string()]);
    command.args(["-R", &spec.rate.to_string(), "-T", &duration_s.to_string(), "-f"]).arg(&script).arg(&servers.url);
    command.stdin(Stdio::null()).stdout(output.try_clone().expect("a file")).stderr(output);
    Process::spawn("pgbench (package postgresql-client-common or postgresql-contrib)", &mut command)
}

/// Waits for pgbench to end, with some time more than it was to take.
pub fn finish(writer: &Process, duration_s: u64) {
    let code = writer.wait_exit(seconds(duration_s + 60));
    assert_eq!(code, 0, "pgbench ended with {code}: the load was not what was asked for");
}
