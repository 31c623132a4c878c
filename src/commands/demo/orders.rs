//! The application that the demo plays: orders are placed, paid and shipped, each step in one transaction with its event.
//! Every seventh transaction is rolled back, and its step comes again in the next one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::postgres::Session;

use super::judge::Written;
use super::screen::Screen;

/// The statement that makes the table of the business.
pub const ORDERS_TABLE: &str = "\
CREATE TABLE orders (
    id     bigint PRIMARY KEY,
    total  numeric(10, 2) NOT NULL,
    status text NOT NULL
);";

/// Where the events of orders go, by walpost's default template.
pub const TOPIC: &str = "outbox.event.order";

const PLACE: &str = "INSERT INTO orders (id, total, status) VALUES ($1, $2::text::numeric, $3)";
const CHANGE: &str = "UPDATE orders SET total = $2::text::numeric, status = $3 WHERE id = $1";
const EVENT: &str = "\
INSERT INTO outbox_messages (aggregate_type, aggregate_id, event_type, payload)
VALUES ('order', $1, $2, $3::text::jsonb)
RETURNING message_id::text";

const BETWEEN: Duration = Duration::from_millis(100);
const ROLLED_BACK_EVERY: usize = 7;
/// Orders that are open at the same time.
const OPEN_MAX: usize = 5;

/// Its transaction is about to end.
#[derive(Debug)]
pub enum Ending {
    Commit(Written),
    Rollback(Written),
}

/// A transaction that the demo needs has failed.
#[derive(Debug, thiserror::Error)]
#[error("the demo's own {what} failed in Postgres")]
pub struct WriteError {
    what: &'static str,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl WriteError {
    fn on<E: std::error::Error + Send + Sync + 'static>(what: &'static str) -> impl FnOnce(E) -> WriteError {
        move |error| WriteError { what, source: Box::new(error) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Placed,
    Paid,
    Shipped,
}

impl Status {
    fn as_str(self) -> &'static str {
        match self {
            Status::Placed => "placed",
            Status::Paid => "paid",
            Status::Shipped => "shipped",
        }
    }

    fn event(self) -> &'static str {
        match self {
            Status::Placed => "order_placed",
            Status::Paid => "order_paid",
            Status::Shipped => "order_shipped",
        }
    }
}

/// One step in the life of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    id: i64,
    cents: i64,
    status: Status,
}

impl Step {
    fn key(&self) -> String {
        self.id.to_string()
    }

    fn total(&self) -> String {
        format!("{}.{:02}", self.cents / 100, self.cents % 100)
    }

    fn payload(&self) -> String {
        format!(r#"{{"order": {}, "total": {}, "status": "{}"}}"#, self.id, self.total(), self.status.as_str())
    }
}

/// The shop.
pub struct Shop {
    next_id: i64,
    open: VecDeque<Step>,
}

impl Shop {
    pub fn new() -> Shop {
        Shop { next_id: 1001, open: VecDeque::new() }
    }

    /// What happens next.
    fn next(&self) -> Step {
        match self.open.front() {
            Some(order) if self.open.len() >= OPEN_MAX => {
                let status = if order.status == Status::Placed { Status::Paid } else { Status::Shipped };
                Step { status, ..order.clone() }
            }
            // Any amount will do, as long as the orders differ.
            _ => Step { id: self.next_id, cents: 1_990 + self.next_id * 7_919 % 20_000, status: Status::Placed },
        }
    }

    /// It has happened.
    fn done(&mut self, step: Step) {
        match step.status {
            Status::Placed => self.next_id += 1,
            Status::Paid | Status::Shipped => drop(self.open.pop_front()),
        }
        if step.status != Status::Shipped {
            self.open.push_back(step);
        }
    }

    /// Runs one transaction as a person would type it, and shows it. `before_commit` is told first, as in [`Shop::trade`].
    pub async fn example(
        &mut self,
        session: &Session,
        screen: &Screen,
    ) -> Result<(Written, std::io::Result<()>), WriteError> {
        let step = self.next();
        let sql = format!(
            "BEGIN;\n\
             INSERT INTO orders (id, total, status) VALUES ({id}, {total}, '{status}');\n\
             INSERT INTO outbox_messages (aggregate_type, aggregate_id, event_type, payload)\n\
             \x20   VALUES ('order', '{id}', '{event}', '{payload}');\n\
             COMMIT;",
            id = step.id,
            total = step.total(),
            status = step.status.as_str(),
            event = step.status.event(),
            payload = step.payload(),
        );
        let shown = screen.code(&sql);
        let at = Instant::now();
        session.batch_execute(&sql).await.map_err(WriteError::on("first transaction"))?;
        let find = "SELECT message_id::text FROM outbox_messages WHERE aggregate_id = $1";
        let row = session.query_one(find, &[&step.key()]).await.map_err(WriteError::on("look at the outbox"))?;
        let id = row.try_get(0).map_err(WriteError::on("look at the outbox"))?;
        let written = Written { id, key: step.key(), event: step.status.event(), at };
        self.done(step);
        Ok((written, shown))
    }

    /// Runs so many transactions, one after the other at a steady pace. Each is announced before its end is sent, so that
    /// who listens knows a message before it can arrive. The last one commits.
    pub async fn trade(
        &mut self,
        session: &Session,
        transactions: usize,
        endings: mpsc::Sender<Ending>,
    ) -> Result<(), WriteError> {
        let place = session.prepare(PLACE).await.map_err(WriteError::on("statement on orders"))?;
        let change = session.prepare(CHANGE).await.map_err(WriteError::on("statement on orders"))?;
        let event = session.prepare(EVENT).await.map_err(WriteError::on("statement on the outbox"))?;
        let mut pace = tokio::time::interval(BETWEEN);
        for n in 1..=transactions {
            pace.tick().await;
            let step = self.next();
            let statement = if step.status == Status::Placed { &place } else { &change };
            session.batch_execute("BEGIN").await.map_err(WriteError::on("BEGIN"))?;
            let changed = session.execute(statement, &[&step.id, &step.total(), &step.status.as_str()]).await;
            changed.map_err(WriteError::on("change of an order"))?;
            let row = session.query_one(&event, &[&step.key(), &step.status.event(), &step.payload()]).await;
            let row = row.map_err(WriteError::on("insert into the outbox"))?;
            let id = row.try_get(0).map_err(WriteError::on("insert into the outbox"))?;
            let written = Written { id, key: step.key(), event: step.status.event(), at: Instant::now() };
            // Who does not listen any more will not ask for the result either.
            if n % ROLLED_BACK_EVERY == 0 && n < transactions {
                let _ = endings.send(Ending::Rollback(written)).await;
                session.batch_execute("ROLLBACK").await.map_err(WriteError::on("ROLLBACK"))?;
            } else {
                let _ = endings.send(Ending::Commit(written)).await;
                session.batch_execute("COMMIT").await.map_err(WriteError::on("COMMIT"))?;
                self.done(step);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_placed_paid_and_shipped_in_this_order_with_several_open() {
        let mut shop = Shop::new();
        let mut steps = Vec::new();
        for _ in 0..60 {
            let step = shop.next();
            steps.push(step.clone());
            shop.done(step);
        }
        let of = |id| steps.iter().filter(|step| step.id == id).map(|step| step.status).collect::<Vec<_>>();
        assert_eq!(of(1001), [Status::Placed, Status::Paid, Status::Shipped]);
        assert_eq!(of(1007), [Status::Placed, Status::Paid, Status::Shipped]);
        assert!(steps.iter().take(10).map(|step| step.id).collect::<std::collections::HashSet<_>>().len() >= OPEN_MAX);
    }

    #[test]
    fn a_step_that_was_rolled_back_comes_again() {
        let mut shop = Shop::new();
        for _ in 0..8 {
            let step = shop.next();
            assert_eq!(shop.next(), step);
            shop.done(step);
        }
    }

    #[test]
    fn a_payload_is_json() {
        let step = Step { id: 7, cents: 1_205, status: Status::Paid };
        let payload: serde_json::Value = serde_json::from_str(&step.payload()).unwrap();
        assert_eq!(payload, serde_json::json!({"order": 7, "total": 12.05, "status": "paid"}));
    }
}
