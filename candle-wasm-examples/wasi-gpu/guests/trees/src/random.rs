//! Random numbers that depend on what they are for, not on the order of the work: both languages draw the same.

/// PCG-RXS-M-XS-32 as a hash of one word (Jarzynski & Olano, 2020).
pub fn hash(word: u32) -> u32 {
    let state = word.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let mixed = ((state >> ((state >> 28) + 4)) ^ state).wrapping_mul(277_803_737);
    (mixed >> 22) ^ mixed
}

/// `word` scaled to `0..end`; the bias is below `end / 2³²`.
pub fn below(word: u32, end: u32) -> u32 {
    ((u64::from(word) * u64::from(end)) >> 32) as u32
}

/// The features in the order in which a node tries them.
pub(crate) struct Features {
    order: Vec<u32>,
    taken: usize,
    state: u32,
    shuffled: bool,
}

impl Features {
    /// The features of node `node` of tree `tree`. In their own order unless `shuffled`.
    pub(crate) fn new(count: u32, shuffled: bool, seed: u32, tree: u32, node: u32) -> Self {
        let state = hash(node.wrapping_add(hash(tree.wrapping_add(hash(!seed)))));
        Self {
            order: (0..count).collect(),
            taken: 0,
            state,
            shuffled,
        }
    }
}

impl Iterator for Features {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let left = self.order.len() - self.taken;
        if left == 0 {
            return None;
        }
        if self.shuffled {
            self.state = hash(self.state);
            let pick = self.taken + below(self.state, left as u32) as usize;
            self.order.swap(self.taken, pick);
        }
        self.taken += 1;
        Some(self.order[self.taken - 1])
    }
}
