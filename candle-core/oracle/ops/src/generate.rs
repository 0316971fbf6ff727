//! Random cases.

use crate::case::{Axis, Input, View};
use crate::value::{Elements, Ty};

/// The distribution of an input's numbers.
#[derive(Clone, Copy, Debug)]
pub enum Fill {
    /// Quarters from -4 to 4: exact in every float dtype, and so are sums and products of a few.
    Quarters,
    /// From -1 to 1.
    Unit,
    /// From 0.1 to 2.
    Positive,
    /// Integers from -4 to 4, so that equal ones occur.
    Few,
    /// From -100 to 100, with zeros, infinities, NaN and very large and small numbers among them.
    Special,
    /// Integers below `.0`.
    Below(usize),
}

/// A source of random choices. The same seed and size give the same case.
pub struct Gen {
    state: u64,
    /// The largest size of a dimension.
    size: usize,
}

impl Gen {
    pub fn new(seed: u64, size: usize) -> Self {
        Self { state: seed, size }
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `n - 1`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 11) as usize % n.max(1)
    }

    /// From `low` to `high`, both included.
    pub fn within(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// From 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Quarters from `-limit` to `limit`.
    pub fn quarter(&mut self, limit: usize) -> f64 {
        self.below(8 * limit + 1) as f64 / 4. - limit as f64
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// The size of a dimension: usually from 1 to the size of the case, sometimes 0.
    pub fn dim(&mut self) -> usize {
        if self.chance(4) {
            0
        } else {
            self.within(1, self.size.max(1))
        }
    }

    /// The size of a dimension, not 0.
    pub fn full_dim(&mut self) -> usize {
        self.within(1, self.size.max(1))
    }

    pub fn shape(&mut self, ranks: std::ops::RangeInclusive<usize>) -> Vec<usize> {
        let rank = self.within(*ranks.start(), *ranks.end());
        (0..rank).map(|_| self.dim()).collect()
    }

    /// A shape without a dimension of size 0.
    pub fn full_shape(&mut self, ranks: std::ops::RangeInclusive<usize>) -> Vec<usize> {
        let rank = self.within(*ranks.start(), *ranks.end());
        (0..rank).map(|_| self.full_dim()).collect()
    }

    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<_> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }

    /// A dimension of a tensor of this rank, from the front or from the back; sometimes one that does not exist.
    pub fn axis(&mut self, rank: usize) -> Axis {
        let beyond = usize::from(self.chance(3));
        let axis = self.below(rank + beyond) as isize;
        if self.chance(30) {
            axis - rank as isize - beyond as isize
        } else {
            axis
        }
    }

    /// The dimension that [`Gen::axis`] returns, counted from the front, for a rank that has it.
    pub fn front(axis: Axis, rank: usize) -> Option<usize> {
        let axis = if axis < 0 { axis + rank as isize } else { axis };
        usize::try_from(axis).ok().filter(|a| *a < rank)
    }

    /// A random memory layout for a tensor of shape `dims`.
    pub fn view(&mut self, dims: &[usize]) -> View {
        let mut view = View::whole(dims);
        if self.chance(40) {
            return view;
        }
        if self.chance(60) {
            view.permute = self.permutation(dims.len());
        }
        for (d, size) in dims.iter().enumerate() {
            let len = if *size > 0 && self.chance(15) {
                1
            } else {
                *size
            };
            let (before, after) = if self.chance(25) {
                (self.below(3), self.below(3))
            } else {
                (0, 0)
            };
            view.keep[d] = (before, len);
            view.base[view.permute[d]] = before + len + after;
        }
        view
    }

    pub fn values(&mut self, n: usize, fill: Fill) -> Vec<f64> {
        (0..n).map(|_| self.value(fill)).collect()
    }

    fn value(&mut self, fill: Fill) -> f64 {
        match fill {
            Fill::Quarters => self.quarter(4),
            Fill::Unit => 2. * self.unit() - 1.,
            Fill::Positive => 0.1 + 1.9 * self.unit(),
            Fill::Few => self.below(9) as f64 - 4.,
            Fill::Below(n) => self.below(n) as f64,
            Fill::Special => match self.below(24) {
                0 => 0.,
                1 => -0.,
                2 => f64::INFINITY,
                3 => f64::NEG_INFINITY,
                4 => f64::NAN,
                5 => 1e30,
                6 => -1e-30,
                7 => 0.5,
                8 => -2.5,
                _ => 200. * self.unit() - 100.,
            },
        }
    }

    /// A tensor of shape `dims`, in some layout.
    pub fn input(&mut self, ty: Ty, dims: &[usize], fill: Fill) -> Input {
        let view = self.view(dims);
        let values = self.values(view.base.iter().product(), fill);
        Input {
            data: Elements::new(ty, &values),
            view,
        }
    }

    /// A contiguous tensor of shape `dims`.
    pub fn whole(&mut self, ty: Ty, dims: &[usize], fill: Fill) -> Input {
        let values = self.values(dims.iter().product(), fill);
        Input {
            data: Elements::new(ty, &values),
            view: View::whole(dims),
        }
    }
}
