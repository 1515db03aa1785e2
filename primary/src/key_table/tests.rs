use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const ROWS: u32 = 64;

/// Keys of several lengths: equal beginnings, zeros at the end, longer than the table takes.
fn bytes(number: u32) -> Vec<u8> {
    let mut bytes = vec![0; [36, 36, 36, 35, 12, 5, 1, 37][number as usize % 8]];
    let number = number.to_be_bytes();
    let len = bytes.len().min(2);
    bytes[..len].copy_from_slice(&number[4 - len..]);
    bytes
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u32, u32),
    Remove(u32),
    SetWord(u32, u32),
    Clear,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        100 => (0..300_u32, 0..ROWS + 2).prop_map(|(key, row)| Op::Insert(key, row)),
        70 => (0..ROWS + 2).prop_map(Op::Remove),
        20 => (0..ROWS + 2, any::<u32>()).prop_map(|(row, word)| Op::SetWord(row, word)),
        1 => Just(Op::Clear),
    ]
}

/// The table and two maps must say the same after every call.
fn run(mut table: KeyTable, ops: Vec<Op>) -> Result<(), TestCaseError> {
    let mut rows: HashMap<u32, (Vec<u8>, u32)> = HashMap::new();
    let mut keys: HashMap<Vec<u8>, u32> = HashMap::new();
    for op in ops {
        match op {
            Op::Insert(number, row) => {
                let key = bytes(number);
                let fits = key.len() <= 36 && row < ROWS && !rows.contains_key(&row) && !keys.contains_key(&key);
                prop_assert_eq!(table.insert_bytes(&key, row), fits);
                if fits {
                    rows.insert(row, (key.clone(), 0));
                    keys.insert(key, row);
                }
            }
            Op::Remove(row) => {
                let gone = rows.remove(&row);
                prop_assert_eq!(table.remove(row), gone.is_some());
                gone.and_then(|(key, _)| keys.remove(&key));
            }
            Op::SetWord(row, word) => {
                let known = rows.get_mut(&row);
                prop_assert_eq!(table.set_word(row, word), known.is_some());
                known.into_iter().for_each(|(_, known)| *known = word & 0x3fff_ffff);
            }
            Op::Clear => {
                table.clear();
                rows.clear();
                keys.clear();
            }
        }
        table.check().map_err(TestCaseError::fail)?;
        prop_assert_eq!(table.len() as usize, rows.len());
        for row in 0..ROWS + 2 {
            let known = rows.get(&row);
            prop_assert_eq!(table.is_row_used(row), known.is_some());
            prop_assert_eq!(table.word(row), known.map_or(0, |(_, word)| *word));
            let key = known.and_then(|(key, _)| Key::from_bytes(key).ok());
            prop_assert_eq!(table.key(row), key);
        }
    }
    let all: Vec<Vec<u8>> = (0..300).map(bytes).collect();
    for key in &all {
        prop_assert_eq!(table.find(key), keys.get(key).copied());
    }
    let batch: Vec<Key> = all.iter().filter_map(|key| Key::from_bytes(key).ok()).collect();
    for len in [0, 1, 15, 16, 17, 31, 32, 33, 100, batch.len()] {
        let mut answers = Vec::new();
        table.find_batch(&batch[..len], |at, row| {
            answers.push((at, row));
            ControlFlow::Continue(())
        });
        let expected = batch[..len].iter().map(|key| keys.get(key.as_bytes()).copied());
        prop_assert_eq!(answers, expected.enumerate().collect::<Vec<_>>());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_table_does_what_maps_do(ops in prop::collection::vec(op(), 0..300)) {
        run(KeyTable::new(ROWS, 36), ops)?;
    }

    /// Every key has the same home and the same tag.
    #[test]
    fn keys_that_all_collide_are_told_apart(ops in prop::collection::vec(op(), 0..300)) {
        run(KeyTable::with_hasher(ROWS, 36, Hasher::useless()), ops)?;
    }
}

/// A short key is padded and ends with its length: it must not pass for the long key of just these bytes.
#[test]
fn a_short_key_is_no_long_key_that_ends_with_its_length() {
    let mut table = KeyTable::with_hasher(4, 36, Hasher::useless());
    let mut long = [7; 36];
    long[35] = 35;
    assert!(table.insert_bytes(&long[..35], 0));
    assert_eq!(table.find(&long), None);
    assert!(table.insert_bytes(&long, 1));
    assert_eq!((table.find(&long[..35]), table.find(&long)), (Some(0), Some(1)));
}

/// Full tables of many sizes, emptied in another order: lines overflow and are closed up again.
#[test]
fn tables_fill_to_the_last_row_and_empty() {
    for rows in [1, 2, 9, 10, 16, 17, 97, 1000, 5000] {
        let mut table = KeyTable::new(rows, 36);
        let key = |i: u32| Key::new(&[&i.to_be_bytes()[..], &[7; 28]].concat(), 3).expect("32 bytes");
        for round in 0..3 {
            for row in 0..rows {
                assert!(table.insert(&key(row + round), row));
            }
            assert!(!table.insert(&key(rows + 7), rows) && table.len() == rows);
            table.check().expect("full");
            let step = (rows / 2 + 1..).find(|step| gcd(*step, rows) == 1).expect("a step that meets every row");
            for i in 0..rows {
                let row = (u64::from(i) * u64::from(step) % u64::from(rows)) as u32;
                assert_eq!(table.find(key(row + round).as_bytes()), Some(row));
                assert!(table.remove(row));
                assert_eq!(table.find(key(row + round).as_bytes()), None);
                if rows <= 100 {
                    table.check().expect("half empty");
                }
            }
            table.check().expect("empty");
            assert!(table.is_empty());
        }
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[test]
fn a_batch_stops_where_it_is_told() {
    let mut table = KeyTable::new(100, 36);
    let keys: Vec<Key> = (0..90_u32).map(|i| Key::new(&i.to_le_bytes(), 0).expect("4 bytes")).collect();
    for (row, key) in (0..).zip(&keys) {
        assert!(table.insert(key, row));
    }
    for stop in [0, 15, 16, 40, 85] {
        let mut seen = 0;
        table.find_batch(&keys, |at, _| {
            seen += 1;
            if at == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(seen, stop + 1);
    }
}

#[test]
fn a_table_without_rows_holds_nothing() {
    let mut table = KeyTable::new(0, 36);
    let key = Key::new(&[1; 32], 0).expect("32 bytes");
    assert!(!table.insert(&key, 0) && table.find(key.as_bytes()).is_none());
    table.find_batch(&[key; 20], |_, row| {
        assert_eq!(row, None);
        ControlFlow::Continue(())
    });
    table.check().expect("empty");
}
