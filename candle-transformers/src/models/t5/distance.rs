//! What scores gain by the distance of query and key: a number for each head and each class of distances, section 2.1 of
//! [arXiv 1910.10683](https://arxiv.org/abs/1910.10683).

use candle_core::{bail, DType, Result, Tensor};
use candle_nn::Init;

use super::Config;
use crate::blocks::Weights;

/// The biases of one stack's scores.
#[derive(Debug, Clone)]
pub(super) struct Distances {
    /// (classes, heads) of f32.
    table: Tensor,
    classes: Classes,
    /// The biases of whole texts of this length: (1, heads, length, length).
    whole: Option<(usize, Tensor)>,
    /// The biases of a single token at the end: (1, heads, 1, n); the last keys are the existing ones.
    single: Option<Tensor>,
}

/// The classes of distances.
#[derive(Debug, Clone, Copy)]
struct Classes {
    /// Those of one direction.
    count: u32,
    /// Distances below have a class each, those from there on share classes by their logarithm.
    exact: u32,
    /// From here on all are of the last class.
    max_distance: usize,
    /// Whether keys may come after the query; they have as many classes more.
    both: bool,
}

impl Classes {
    fn new(config: &Config, both: bool) -> Result<Self> {
        let (count, max) = (
            config.relative_attention_num_buckets,
            config.relative_attention_max_distance,
        );
        let of_one = if both { count / 2 } else { count };
        let exact = of_one / 2;
        if exact == 0 || max <= exact || u32::try_from(count).is_err() {
            bail!(
                "t5 config: relative_attention_num_buckets {count} and relative_attention_max_distance {max} give no distance \
                 buckets; at least 4 are required, and the distance must exceed half of those of a direction"
            )
        }
        Ok(Self {
            count: of_one as u32,
            exact: exact as u32,
            max_distance: max,
            both,
        })
    }

    fn of(self, query: usize, key: usize) -> u32 {
        let (after, distance) = if key > query {
            (if self.both { self.count } else { 0 }, key - query)
        } else {
            (0, query - key)
        };
        // Only causal attention, which hides them.
        if key > query && !self.both {
            return 0;
        }
        if distance < self.exact as usize {
            return after + distance as u32;
        }
        let exact = self.exact as f32;
        let part = (distance as f32 / exact).ln() / (self.max_distance as f32 / exact).ln();
        let class = self.exact + (part * (self.count - self.exact) as f32) as u32;
        after + class.min(self.count - 1)
    }
}

impl Distances {
    /// Loads the table `name`; `both` where keys may come after the query.
    pub(super) async fn load(
        config: &Config,
        both: bool,
        weights: &mut Weights<'_>,
        name: &str,
    ) -> Result<Self> {
        let classes = Classes::new(config, both)?;
        let shape = [config.relative_attention_num_buckets, config.num_heads];
        let init = Init::Randn {
            mean: 0.,
            stdev: 1.,
        };
        Ok(Self {
            table: weights.dense_as(DType::F32, name, &shape, init).await?,
            classes,
            whole: None,
            single: None,
        })
    }

    /// The biases of the scores of `queries` tokens, the last of `keys`: broadcasts to (1, heads, queries, keys), f32.
    pub(super) fn forward(&mut self, queries: usize, keys: usize) -> Result<Tensor> {
        if queries == 1 {
            return self.of_last(keys);
        }
        match &self.whole {
            Some((len, bias)) if queries == keys && *len == keys => Ok(bias.clone()),
            _ => {
                let bias = self.computed(queries, keys)?;
                // A table that is trained changes.
                if queries == keys && !bias.track_op() {
                    self.whole = Some((keys, bias.clone()));
                }
                Ok(bias)
            }
        }
    }

    /// The biases of the last token of `keys`, without a read or a write of the host per call.
    fn of_last(&mut self, keys: usize) -> Result<Tensor> {
        let long_enough = |bias: &&Tensor| bias.dims().last().is_some_and(|n| *n >= keys);
        let bias = match self.single.as_ref().filter(long_enough) {
            Some(bias) => bias.clone(),
            None => {
                let bias = self.computed(1, keys.next_power_of_two().max(64))?;
                if !bias.track_op() {
                    self.single = Some(bias.clone());
                }
                bias
            }
        };
        let n = bias.dim(3)?;
        bias.narrow(3, n - keys, keys)
    }

    fn computed(&self, queries: usize, keys: usize) -> Result<Tensor> {
        let classes = self.classes;
        let of_query = |query| (0..keys).map(move |key| classes.of(query, key));
        let all: Vec<u32> = (keys - queries..keys).flat_map(of_query).collect();
        let all = Tensor::from_vec(all, queries * keys, self.table.device())?;
        let (_, heads) = self.table.dims2()?;
        self.table
            .index_select(&all, 0)?
            .t()?
            .contiguous()?
            .reshape((1, heads, queries, keys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked out by hand from the formula of the published model: `exact + ln(distance / exact) / ln(max / exact) * (count - exact)`.
    #[test]
    fn classes_of_distances() -> Result<()> {
        let config = Config::default();
        let encoder = Classes::new(&config, true)?;
        for (query, key, class) in [
            (5, 5, 0),
            (5, 2, 3),
            (2, 5, 19),
            (8, 0, 8),
            (15, 0, 9),
            (17, 0, 10),
            (500, 0, 15),
            (0, 500, 31),
        ] {
            assert_eq!(encoder.of(query, key), class, "{query} to {key}");
        }
        let decoder = Classes::new(&config, false)?;
        for (distance, class) in [(0, 0), (15, 15), (20, 17), (64, 26), (127, 31), (1000, 31)] {
            assert_eq!(decoder.of(distance, 0), class, "{distance}");
        }
        Ok(())
    }
}
