//! Doubly linked lists over the rows of a table.

/// A few doubly linked lists over rows `0..rows`; a row is in one list or in none. 9 bytes a row, taken at start; every
/// operation but iteration is O(1) and allocates nothing.
///
/// Calls that make no sense (a row or list out of range, linking a linked row, unlinking a row that is not) change nothing and
/// say so.
#[derive(Debug)]
pub struct Links {
    /// `[previous, next]` for each node: node 0 stands for "not linked", then one head for each list, then the rows.
    /// A head is its list's front and back, so that no operation has an end case.
    nodes: Vec<[u32; 2]>,
    /// The list of each row, plus one; 0: in none.
    lists: Vec<u8>,
    lens: Vec<u32>,
}

const PREVIOUS: usize = 0;
const NEXT: usize = 1;

impl Links {
    /// `lists` empty lists (254 at most) over `rows` rows (at most `u32::MAX - 255`; more is cut).
    pub fn new(rows: u32, lists: u8) -> Self {
        let rows = rows.min(u32::MAX - 255) as usize;
        let lists = lists.min(254);
        let mut nodes = vec![[0, 0]; rows + usize::from(lists) + 1];
        for list in 0..lists {
            let head = u32::from(list) + 1;
            nodes[head as usize] = [head, head];
        }
        Self { nodes, lists: vec![0; rows], lens: vec![0; usize::from(lists)] }
    }

    /// Rows in `list`.
    #[inline]
    pub fn len(&self, list: u8) -> u32 {
        self.lens.get(usize::from(list)).copied().unwrap_or(0)
    }

    /// Whether `list` has no row.
    #[inline]
    pub fn is_empty(&self, list: u8) -> bool {
        self.len(list) == 0
    }

    /// The list that `row` is in.
    #[inline]
    pub fn list(&self, row: u32) -> Option<u8> {
        self.lists.get(row as usize)?.checked_sub(1)
    }

    /// Puts `row` at the front of `list`. False if it is in a list already, or row or list does not exist.
    #[inline]
    pub fn push_front(&mut self, list: u8, row: u32) -> bool {
        let head = u32::from(list) + 1;
        self.link(list, row, |nodes| (head, nodes[head as usize][NEXT]))
    }

    /// Puts `row` at the back of `list`. False if it is in a list already, or row or list does not exist.
    #[inline]
    pub fn push_back(&mut self, list: u8, row: u32) -> bool {
        let head = u32::from(list) + 1;
        self.link(list, row, |nodes| (nodes[head as usize][PREVIOUS], head))
    }

    /// Takes `row` out of its list, which is returned; `None` if it is in none.
    #[inline]
    pub fn unlink(&mut self, row: u32) -> Option<u8> {
        let list = self.list(row)?;
        let node = self.node(row);
        let [previous, next] = std::mem::take(&mut self.nodes[node]);
        self.nodes[previous as usize][NEXT] = next;
        self.nodes[next as usize][PREVIOUS] = previous;
        self.lists[row as usize] = 0;
        self.lens[usize::from(list)] -= 1;
        Some(list)
    }

    /// Takes `row` out of its list, if it is in one, and puts it at the front of `list`. False if row or list does not exist.
    #[inline]
    pub fn move_front(&mut self, list: u8, row: u32) -> bool {
        if usize::from(list) >= self.lens.len() {
            return false;
        }
        self.unlink(row);
        self.push_front(list, row)
    }

    /// Takes the row at the back of `list` out and returns it.
    #[inline]
    pub fn pop_back(&mut self, list: u8) -> Option<u32> {
        let row = self.back(list)?;
        self.unlink(row);
        Some(row)
    }

    /// The row at the back of `list`.
    #[inline]
    pub fn back(&self, list: u8) -> Option<u32> {
        self.row(self.head(list)?[PREVIOUS])
    }

    /// The row at the front of `list`.
    #[inline]
    pub fn front(&self, list: u8) -> Option<u32> {
        self.row(self.head(list)?[NEXT])
    }

    /// The row before `row` in its list, one step towards the front.
    #[inline]
    pub fn before(&self, row: u32) -> Option<u32> {
        self.list(row)?;
        self.row(self.nodes[self.node(row)][PREVIOUS])
    }

    /// The rows of `list`, front to back.
    pub fn iter(&self, list: u8) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.front(list), |row| self.row(self.nodes[self.node(*row)][NEXT]))
    }

    /// The rows of `list`, back to front.
    pub fn iter_back(&self, list: u8) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.back(list), |row| self.before(*row))
    }

    /// Takes every row out of every list. Touches all rows.
    pub fn clear(&mut self) {
        self.lists.fill(0);
        self.lens.fill(0);
        self.nodes.fill([0, 0]);
        for list in 0..self.lens.len() as u32 {
            self.nodes[list as usize + 1] = [list + 1, list + 1];
        }
    }

    /// Bytes that the lists take.
    pub fn bytes(&self) -> usize {
        self.nodes.capacity() * 8 + self.lists.capacity() + self.lens.capacity() * 4
    }

    #[inline]
    fn link(&mut self, list: u8, row: u32, place: impl FnOnce(&[[u32; 2]]) -> (u32, u32)) -> bool {
        if usize::from(list) >= self.lens.len() || self.lists.get(row as usize) != Some(&0) {
            return false;
        }
        let (previous, next) = place(&self.nodes);
        let node = self.node(row);
        self.nodes[node] = [previous, next];
        self.nodes[previous as usize][NEXT] = node as u32;
        self.nodes[next as usize][PREVIOUS] = node as u32;
        self.lists[row as usize] = list + 1;
        self.lens[usize::from(list)] += 1;
        true
    }

    #[inline]
    fn head(&self, list: u8) -> Option<&[u32; 2]> {
        if usize::from(list) < self.lens.len() { self.nodes.get(usize::from(list) + 1) } else { None }
    }

    #[inline]
    fn node(&self, row: u32) -> usize {
        row as usize + self.lens.len() + 1
    }

    /// The row of a node, unless the node is a head.
    #[inline]
    fn row(&self, node: u32) -> Option<u32> {
        node.checked_sub(self.lens.len() as u32 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const ROWS: u32 = 12;
    const LISTS: u8 = 3;

    #[derive(Clone, Debug)]
    enum Op {
        PushFront(u8, u32),
        PushBack(u8, u32),
        MoveFront(u8, u32),
        Unlink(u32),
        PopBack(u8),
        Clear,
    }

    fn op() -> impl Strategy<Value = Op> {
        // One list and two rows more than there are.
        let (list, row) = (0..=LISTS, 0..ROWS + 2);
        prop_oneof![
            4 => (list.clone(), row.clone()).prop_map(|(list, row)| Op::PushFront(list, row)),
            4 => (list.clone(), row.clone()).prop_map(|(list, row)| Op::PushBack(list, row)),
            4 => (list.clone(), row.clone()).prop_map(|(list, row)| Op::MoveFront(list, row)),
            4 => row.prop_map(Op::Unlink),
            4 => list.prop_map(Op::PopBack),
            1 => Just(Op::Clear),
        ]
    }

    proptest! {
        #[test]
        fn lists_do_what_deques_do(ops in prop::collection::vec(op(), 0..200)) {
            let mut links = Links::new(ROWS, LISTS);
            let mut model = vec![VecDeque::new(); usize::from(LISTS)];
            for op in ops {
                let list_of = |model: &[VecDeque<u32>], row| model.iter().position(|list| list.contains(&row));
                let takes = |model: &[VecDeque<u32>], list, row| {
                    list < LISTS && row < ROWS && list_of(model, row).is_none()
                };
                match op {
                    Op::PushFront(list, row) => {
                        let expected = takes(&model, list, row);
                        prop_assert_eq!(links.push_front(list, row), expected);
                        if expected {
                            model[usize::from(list)].push_front(row);
                        }
                    }
                    Op::PushBack(list, row) => {
                        let expected = takes(&model, list, row);
                        prop_assert_eq!(links.push_back(list, row), expected);
                        if expected {
                            model[usize::from(list)].push_back(row);
                        }
                    }
                    Op::MoveFront(list, row) => {
                        let expected = list < LISTS && row < ROWS;
                        prop_assert_eq!(links.move_front(list, row), expected);
                        if expected {
                            model.iter_mut().for_each(|list| list.retain(|other| *other != row));
                            model[usize::from(list)].push_front(row);
                        }
                    }
                    Op::Unlink(row) => {
                        let list = list_of(&model, row);
                        prop_assert_eq!(links.unlink(row).map(usize::from), list);
                        model.iter_mut().for_each(|list| list.retain(|other| *other != row));
                    }
                    Op::PopBack(list) => {
                        let expected = model.get_mut(usize::from(list)).and_then(VecDeque::pop_back);
                        prop_assert_eq!(links.pop_back(list), expected);
                    }
                    Op::Clear => {
                        links.clear();
                        model.iter_mut().for_each(VecDeque::clear);
                    }
                }
                for (list, rows) in (0..).zip(&model) {
                    prop_assert_eq!(links.len(list) as usize, rows.len());
                    prop_assert_eq!(links.is_empty(list), rows.is_empty());
                    prop_assert_eq!((links.front(list), links.back(list)), (rows.front().copied(), rows.back().copied()));
                    prop_assert!(links.iter(list).eq(rows.iter().copied()));
                    prop_assert!(links.iter_back(list).eq(rows.iter().rev().copied()));
                }
                for row in 0..ROWS + 2 {
                    prop_assert_eq!(links.list(row).map(usize::from), list_of(&model, row));
                }
            }
        }
    }

    #[test]
    fn no_rows_and_no_lists_are_fine() {
        let mut links = Links::new(0, 0);
        assert!(!links.push_front(0, 0) && links.pop_back(0).is_none() && links.unlink(0).is_none());
        assert_eq!(Links::new(10, 0).bytes(), 11 * 8 + 10);
    }
}
