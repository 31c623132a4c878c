//! Nothing is repeated unless something crashed: what was delivered before a connection was lost is known to the process
//! that delivered it, also where the server had not been told yet.

use crate::kit::*;

/// Up to 16 a clean restart moves the slot back as well.
#[test]
fn when_postgres_is_restarted_in_good_order_or_cuts_the_connection() {
    for major in [15, 17] {
        let (kafka, mut postgres) = (Kafka::shared(), Postgres::start_major(major));
        let scene = Scene::new(&postgres, kafka, Table::Walpost);
        let workload = scene.workload().transactions_per_second(50);
        let load = workload.start();
        let relay = scene.walpost("run").spawn();
        relay.wait_published(200, seconds(40));
        for what in ["fast", "terminate", "terminate", "fast"] {
            let before = relay.published();
            if what == "fast" {
                postgres.stop(Stop::Fast, seconds(20));
                wait_for(seconds(10), "a relay that has noticed", || relay.state() != "streaming");
                postgres.start();
            } else {
                scene.sql().execute("select pg_terminate_backend(pid) from pg_stat_replication");
            }
            relay.wait_published(before + 200, seconds(60));
            relay.wait_streaming();
        }
        let expected = load.stop();
        relay.stop();
        scene.catch_up(seconds(60));
        kafka.verify(&workload, &expected).assert_exactly_once();
    }
}
