//! An outbox whose rows are divided by a hash of their key among several publications, each with a slot and a relay of its
//! own: no row is left to none or to two, and the order of a key is kept, whatever relay dies.

use std::time::Instant;

use crate::kit::*;

/// One of the shards of a scene: its slot and its publication.
struct Shard<'a> {
    scene: &'a Scene,
    slot: String,
    publication: String,
}

impl Shard<'_> {
    fn walpost(&self, arguments: &str) -> WalpostCommand {
        self.scene.walpost(arguments).slot(&self.slot).env("WALPOST_PUBLICATION", &self.publication)
    }
}

fn shards(scene: &Scene, count: u32) -> Vec<Shard<'_>> {
    let made = (0..count).map(|index| {
        let (slot, publication) = (format!("{}_1_{index}", scene.name), format!("walpost_1_{index}"));
        scene.sql().execute(&format!(
            "create publication {publication} for table outbox_messages
             where (((coalesce(hashtext(aggregate_id), 0) & 2147483647) % {count}) = {index})
             with (publish = 'insert', publish_via_partition_root = true)"
        ));
        let shard = Shard { scene, slot, publication };
        shard.walpost("setup").succeeds(seconds(30));
        shard
    });
    made.collect()
}

#[test]
fn a_relay_for_each_shard_loses_and_swaps_nothing_when_one_is_killed() {
    let kafka = Kafka::shared();
    for major in [15, 18] {
        let postgres = Postgres::start_major(major);
        let scene = Scene::without_setup(&postgres, kafka, Table::Walpost);
        let shards = shards(&scene, 2);
        let relays: Vec<Walpost> = shards.iter().map(|shard| shard.walpost("run").spawn()).collect();
        for relay in &relays {
            relay.wait_streaming();
        }
        let workload = scene.workload().transactions_per_second(100);
        let load = workload.start();
        for relay in &relays {
            relay.wait_published(200, seconds(30));
        }
        // The other one goes on meanwhile, and nobody waits for anybody.
        let before = relays[1].published();
        relays[0].kill9();
        let killed = Instant::now();
        let again = shards[0].walpost("run").spawn();
        relays[1].wait_published(before + 200, seconds(20));
        again.wait_published(200, seconds(30));
        assert!(killed.elapsed() < seconds(40));
        let expected = load.stop();
        again.stop();
        relays[1].stop();
        for shard in &shards {
            shard.walpost("run --until-caught-up").succeeds(seconds(60));
        }
        // Shards write to the same partitions, and what is read back of one ends at any shard's record that lies below the
        // confirmed position. So a row may repeat after a kill.
        kafka.verify_shards(2, &workload, &expected).assert_at_least_once();
    }
}

/// What a shard's slot has lost is read from the table under the same filter: the rows of other shards would otherwise be
/// published twice, the second time out of order.
#[test]
fn a_shards_lost_slot_is_healed_with_its_own_rows_alone() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::without_setup(&postgres, kafka, Table::Walpost);
    let shards = shards(&scene, 2);
    let workload = scene.workload().rows(400);
    let mut expected = workload.run();
    for shard in &shards {
        shard.walpost("run --until-caught-up").succeeds(seconds(60));
    }
    scene.sql().execute(&format!("select pg_drop_replication_slot('{}')", shards[0].slot));
    expected.extend(workload.run());
    shards[1].walpost("run --until-caught-up").succeeds(seconds(60));
    shards[0].walpost("recover --yes").succeeds(seconds(60));
    for shard in &shards {
        shard.walpost("run --until-caught-up").succeeds(seconds(60));
    }
    let topics = workload.topics();
    let topics = topics.each_ref().map(String::as_str);
    let of_shard = |index: u32| {
        let rows = kafka.read(&topics).into_iter().filter(|record| record.header("origin").is_some());
        let ids: Vec<String> = rows.filter_map(|record| record.header("id")).map(|id| format!("'{id}'")).collect();
        assert!(!ids.is_empty(), "nothing was read from the table");
        scene.sql().number(&format!(
            "select count(*) from outbox_messages where message_id in ({}) and (hashtext(aggregate_id) & 2147483647) % 2 = {index}",
            ids.join(", ")
        ))
    };
    assert_eq!(of_shard(1), 0, "rows of the other shard were published again");
    assert!(of_shard(0) > 0);
    kafka.verify_shards(2, &workload, &expected).assert_at_least_once();
}
