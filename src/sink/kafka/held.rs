//! What the relay decides on records that are held: given back, replaced, or frozen with all that is behind them.

use super::*;

impl KafkaSink {
    /// This ticket never comes here: its message is set aside.
    pub fn pass(&mut self, ticket: Ticket) {
        // With nothing out or held the next record begins anew.
        if !self.sent.is_empty() {
            debug_assert_eq!(ticket.0, self.first_ticket + self.sent.len(), "tickets come without a gap");
            let (topic, at) = (TopicId(0), Instant::now());
            self.sent.push_back(Sent { topic, partition: 0, partition_hash: 0, bytes: 0, at, place: Place::Settled });
        }
    }

    /// Gives a held record back. It counts as settled.
    pub fn take(&mut self, ticket: Ticket) -> Option<Record> {
        self.undecided.remove(&ticket.0);
        let record = self.held.remove(ticket.0);
        if let Some(sent) = self.place(ticket.0) {
            sent.place = Place::Settled;
        }
        self.forget_settled();
        record
    }

    /// A record that is held: poison, or what waits to be fed again.
    pub fn held(&self, ticket: Ticket) -> Option<&Record> {
        self.held.get(ticket.0)
    }

    pub fn all_held(&self) -> impl Iterator<Item = (Ticket, &Record)> {
        self.held.iter().map(|(ticket, record)| (Ticket(ticket), record))
    }

    /// Whether an earlier record than `ticket`, of this topic and of a key with this hash, is out or held.
    pub fn waits_before(&mut self, ticket: Ticket, topic: &Arc<str>, partition_hash: u32) -> bool {
        let (topic, earlier) = (self.topics.id(topic), ticket.0.saturating_sub(self.first_ticket));
        let is_of = |sent: &Sent| sent.topic == topic && sent.partition_hash == partition_hash;
        self.sent.iter().take(earlier).any(|sent| sent.place != Place::Settled && is_of(sent))
    }

    /// Gives all held records back that are `wanted`, in their order. They count as settled.
    pub fn take_held(&mut self, wanted: impl Fn(Ticket, &Record) -> bool) -> Vec<(Ticket, Record)> {
        let tickets: Vec<Ticket> =
            self.all_held().filter(|(ticket, record)| wanted(*ticket, record)).map(|(ticket, _)| ticket).collect();
        tickets.into_iter().filter_map(|ticket| Some((ticket, self.take(ticket)?))).collect()
    }

    /// Another record goes in the place of one that was refused.
    pub fn replace(&mut self, ticket: Ticket, record: Record) {
        self.undecided.remove(&ticket.0);
        let (topic, bytes) = (self.topics.id(&record.topic), weight(&record));
        if let Some(sent) = self.place(ticket.0) {
            (sent.topic, sent.bytes, sent.partition_hash) = (topic, bytes, record.partition_hash);
        }
        self.held.put_in_line(ticket.0, topic, record);
    }

    /// The relay stops at a poison record: what lies before it is still delivered, nothing from it on.
    pub fn freeze(&mut self, ticket: Ticket) {
        self.undecided.remove(&ticket.0);
        self.frozen_at = Some(self.frozen_at.map_or(ticket.0, |earlier| earlier.min(ticket.0)));
    }

    /// Nothing is fed any more, whatever is held or comes.
    pub fn freeze_all(&mut self) {
        self.frozen_at = Some(0);
    }

    /// After a freeze: everything before the frozen record is delivered.
    pub fn only_frozen_left(&self) -> bool {
        self.outstanding == 0
            && self.frozen_at.is_some_and(|frozen| self.first_ticket >= frozen || self.sent.is_empty())
    }
}
