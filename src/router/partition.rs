//! The hash of a key that chooses its partition, as the earlier producer made it: the same key must go on to the same
//! partition, or its order breaks at the seam.

use crate::config::Partitioner;

/// The hash by which `key` is placed: its partition is this, modulo the topic's number of partitions.
pub fn hash(partitioner: Partitioner, key: &[u8]) -> u32 {
    match partitioner {
        Partitioner::Murmur2 => murmur2(key),
        Partitioner::Crc32 => crc32(key),
        Partitioner::Fnv1a => fnv1a(key),
    }
}

/// MurmurHash2 as Java's producer uses it, without the sign bit: Java makes the hash positive by cutting it off.
pub fn murmur2(key: &[u8]) -> u32 {
    const MULTIPLIER: u32 = 0x5bd1_e995;
    const SEED: u32 = 0x9747_b28c;
    // Java's length is an int, and no key is longer.
    let mut hash = SEED ^ key.len() as u32;
    let (words, tail) = key.as_chunks();
    for word in words {
        let mut word = u32::from_le_bytes(*word).wrapping_mul(MULTIPLIER);
        word ^= word >> 24;
        hash = hash.wrapping_mul(MULTIPLIER) ^ word.wrapping_mul(MULTIPLIER);
    }
    if !tail.is_empty() {
        for (place, byte) in tail.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * place);
        }
        hash = hash.wrapping_mul(MULTIPLIER);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MULTIPLIER);
    hash ^= hash >> 15;
    hash & 0x7fff_ffff
}

/// CRC-32 as zlib's, by which librdkafka's `consistent` and `consistent_random` (its default) place keys.
pub fn crc32(key: &[u8]) -> u32 {
    const TABLE: [u32; 256] = crc32_table();
    let step = |crc: u32, byte: &u8| TABLE[usize::from(crc as u8 ^ byte)] ^ crc >> 8;
    !key.iter().fold(u32::MAX, step)
}

const fn crc32_table() -> [u32; 256] {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { POLYNOMIAL ^ crc >> 1 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

/// FNV-1a, 32 bits, as Sarama's default and librdkafka's `fnv1a` use it: taken as a signed number, then without its
/// sign.
pub fn fnv1a(key: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    (key.iter().fold(0x811c_9dc5, step) as i32).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys whose hashes are published with the producers' own tests.
    const KEYS: [&str; 11] = [
        "kafka",
        "giberish123456789",
        "1234",
        "234",
        "34",
        "4",
        "PreAmbleWillBeRemoved,ThePrePartThatIs",
        "reAmbleWillBeRemoved,ThePrePartThatIs",
        "eAmbleWillBeRemoved,ThePrePartThatIs",
        "AmbleWillBeRemoved,ThePrePartThatIs",
        "",
    ];

    #[test]
    fn murmur2_is_what_java_computes() {
        let java = [
            0xd067cf64u32,
            0x8f552b0c,
            0x9fc97b14,
            0xe7c009ca,
            0x873930da,
            0x5a4b5ca1,
            0x78424f1c,
            0x4a62b377,
            0xe0e4e09e,
            0x62b8b43f,
            0x106e08d9,
        ];
        for (key, hash) in KEYS.into_iter().zip(java) {
            assert_eq!(murmur2(key.as_bytes()), hash & 0x7fff_ffff, "{key:?}");
        }
    }

    #[test]
    fn fnv1a_is_what_sarama_computes() {
        let sarama = [
            0xd33c4e1, 0x77a58295, 0x23bdd03, 0x2dea3cd2, 0x740fa83e, 0x310ca263, 0x65cbd69c, 0x6e49c79a, 0x69eed356,
            0x6abcc023, 0x7ee3623b,
        ];
        for (key, hash) in KEYS.into_iter().zip(sarama) {
            assert_eq!(fnv1a(key.as_bytes()), hash, "{key:?}");
        }
    }

    #[test]
    fn crc32_is_zlibs() {
        assert_eq!(crc32(b""), 0);
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b"The quick brown fox jumps over the lazy dog"), 0x414f_a339);
    }

    #[test]
    fn known_keys_go_where_the_earlier_producer_put_them() {
        for (key, partitions, by_java, by_librdkafka) in [
            ("354afe16-939a-4ea8-8e17-8bb0840b6886", 10, 4, 9),
            ("f562ac3b-2224-4e25-a0ab-56094e10c239", 10, 5, 6),
            ("fd7af248-ce5c-46a5-93d7-1c0c9005b99d", 32, 26, 23),
        ] {
            assert_eq!(hash(Partitioner::Murmur2, key.as_bytes()) % partitions, by_java, "{key}");
            assert_eq!(hash(Partitioner::Crc32, key.as_bytes()) % partitions, by_librdkafka, "{key}");
        }
    }

    #[test]
    fn bytes_above_127_are_not_taken_as_negative() {
        assert_eq!(crc32(&[0xff, 0xff, 0xff, 0xff]), 0xffff_ffff);
        // Computed with the reference: hash of the single byte 0xff, (0x811c9dc5 ^ 0xff) * 0x01000193.
        assert_eq!(fnv1a(&[0xff]), (0x811c_9d3au32.wrapping_mul(0x0100_0193) as i32).unsigned_abs());
    }
}
