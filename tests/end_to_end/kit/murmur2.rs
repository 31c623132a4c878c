//! Which partition Java's default partitioner gives a key: murmur2, written a second time so that the tests do not ask
//! walpost whether walpost is right.

pub fn partition(key: &[u8], partitions: i32) -> i32 {
    let positive = (murmur2(key) & 0x7fff_ffff) as i32;
    positive % partitions
}

fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mix = |hash: u32, word: u32| {
        let word = word.wrapping_mul(M);
        hash.wrapping_mul(M) ^ (word ^ (word >> 24)).wrapping_mul(M)
    };
    let words = data.chunks_exact(4);
    let tail = words.remainder();
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0u32, |word, &byte| word << 8 | u32::from(byte));
    let seed = 0x9747_b28c ^ data.len() as u32;
    let mut hash = words.fold(seed, |hash, bytes| mix(hash, word(bytes)));
    if !tail.is_empty() {
        hash = (hash ^ word(tail)).wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

/// From Kafka's own unit tests of its `murmur2`.
#[test]
fn the_kits_murmur2_is_javas() {
    let known: [(&str, i32); 7] = [
        ("21", -973_932_308),
        ("foobar", -790_332_482),
        ("a-little-bit-long-string", -985_981_536),
        ("a-little-bit-longer-string", -1_486_304_829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
        ("abc", 479_470_107),
        ("", 275_646_681),
    ];
    for (key, hash) in known {
        assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
    }
}
