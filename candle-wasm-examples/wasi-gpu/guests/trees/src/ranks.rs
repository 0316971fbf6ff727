//! The values of each feature in order, sorted once for all nodes.

/// Each value's place among the distinct values of its feature.
pub(crate) struct Ranks {
    rows: usize,
    /// `(features, rows)`.
    ranks: Vec<u32>,
    /// For each feature, its distinct values.
    values: Vec<Vec<f32>>,
}

impl Ranks {
    /// The ranks of `data`, `(rows, features)`; its values are finite.
    pub(crate) fn new(features: u32, data: &[f32]) -> Self {
        let features = features as usize;
        let rows = data.len() / features;
        let mut ranks = vec![0; data.len()];
        let mut values = Vec::with_capacity(features);
        let mut order = (0..rows).collect::<Vec<_>>();
        for feature in 0..features {
            let value = |row: usize| data[row * features + feature];
            order.sort_unstable_by(|&a, &b| value(a).total_cmp(&value(b)));
            let mut distinct = Vec::<f32>::new();
            for &row in &order {
                // −0 equals 0.
                if distinct.last().is_none_or(|&last| last < value(row)) {
                    distinct.push(value(row));
                }
                ranks[feature * rows + row] = distinct.len() as u32 - 1;
            }
            values.push(distinct);
        }
        Self {
            rows,
            ranks,
            values,
        }
    }

    /// The distinct values of a feature in these rows.
    pub(crate) fn distinct(&self, rows: &[u32], feature: u32) -> Distinct<'_> {
        let feature = feature as usize;
        let ranks = &self.ranks[feature * self.rows..][..self.rows];
        let values = &self.values[feature];
        let words = values.len().div_ceil(64);
        let rank = |&row: &u32| ranks[row as usize];
        // As many steps by either way.
        if rows.len() < words {
            let mut found = rows.iter().map(rank).collect::<Vec<_>>();
            found.sort_unstable();
            found.dedup();
            return Distinct {
                values,
                count: found.len(),
                ranks: Found::Sorted(found),
            };
        }
        let mut bits = vec![0u64; words];
        for rank in rows.iter().map(rank) {
            bits[rank as usize / 64] |= 1 << (rank % 64);
        }
        Distinct {
            values,
            count: bits.iter().map(|bits| bits.count_ones() as usize).sum(),
            ranks: Found::Bits(bits),
        }
    }
}

/// Distinct values in ascending order.
pub(crate) struct Distinct<'a> {
    values: &'a [f32],
    count: usize,
    ranks: Found,
}

enum Found {
    Sorted(Vec<u32>),
    /// A bit for each rank.
    Bits(Vec<u64>),
}

impl Distinct<'_> {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Those at `places`, which do not descend and are below the length.
    pub(crate) fn at(&self, places: impl Iterator<Item = usize>) -> Vec<f32> {
        let bits = match &self.ranks {
            Found::Sorted(ranks) => {
                return places
                    .map(|place| self.values[ranks[place] as usize])
                    .collect()
            }
            Found::Bits(bits) => bits,
        };
        let mut word = 0;
        // Bits of the words before, and those of the word that were passed.
        let (mut before, mut passed) = (0, 0);
        let mut rest = bits.first().copied().unwrap_or(0);
        let value = |place: usize| {
            while place >= before + passed + rest.count_ones() as usize {
                before += passed + rest.count_ones() as usize;
                passed = 0;
                word += 1;
                rest = bits[word];
            }
            while before + passed < place {
                rest &= rest - 1;
                passed += 1;
            }
            self.values[word * 64 + rest.trailing_zeros() as usize]
        };
        places.map(value).collect()
    }
}
