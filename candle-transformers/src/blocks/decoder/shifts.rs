//! Positions of the tokens after images: an image has fewer positions than tokens, so what follows it is nearer.

use super::super::Position;

/// By how much the positions of a sequence's tokens differ from their indices.
#[derive(Debug, Clone, Default)]
pub(super) struct Shifts {
    /// The first token, and what is added to its index and to those of the tokens after it. In order.
    from: Vec<(usize, i64)>,
}

impl Shifts {
    /// The position of the token with this index, of one that follows what the sequence has.
    pub(super) fn position(&self, token: usize) -> usize {
        let found = self.from.iter().rev().find(|(first, _)| *first <= token);
        let by = found.map_or(0, |(_, by)| *by);
        usize::try_from(token as i64 + by).unwrap_or(0)
    }

    /// Whether all positions are the indices.
    #[cfg(any(test, feature = "cuda"))]
    pub(super) fn is_empty(&self) -> bool {
        self.from.is_empty()
    }

    /// Forgets the tokens after the first `len`.
    pub(super) fn cut(&mut self, len: usize) {
        self.from.retain(|(first, _)| *first <= len);
    }

    /// Adds tokens with these positions, the first of which has the index `first`: text that follows one of them is at the next position after
    /// the largest of its axes.
    pub(super) fn add(&mut self, first: usize, positions: &[Position]) {
        self.cut(first);
        for (i, position) in positions.iter().enumerate() {
            let next = first + i + 1;
            let by = i64::from(position.iter().copied().max().unwrap_or(0)) + 1 - next as i64;
            let before = self.from.last().map_or(0, |(_, by)| *by);
            if by != before {
                self.from.push((next, by));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_after_an_image() {
        let mut shifts = Shifts::default();
        assert_eq!((shifts.position(3), shifts.is_empty()), (3, true));
        // A token, an image of 2 x 2 tokens, and a token.
        let image = [[1, 1, 1], [1, 1, 2], [1, 2, 1], [1, 2, 2]];
        let tokens = [&[[0; 3]][..], &image, &[[3; 3]]].concat();
        shifts.add(0, &tokens);
        assert_eq!(
            [shifts.position(5), shifts.position(6), shifts.position(9)],
            [3, 4, 7]
        );
        let mut shorter = shifts.clone();
        shorter.cut(5);
        assert_eq!(shorter.position(5), 3);
        shorter.cut(1);
        assert_eq!((shorter.position(1), shorter.is_empty()), (1, true));
        // Another image behind.
        shifts.add(6, &[[4, 4, 4], [4, 4, 5]]);
        assert_eq!(shifts.position(8), 6);
    }
}
