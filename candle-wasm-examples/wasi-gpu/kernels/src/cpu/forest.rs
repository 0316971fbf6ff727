//! Drawing samples, and walks down trees.

use rayon::prelude::*;

use super::Words;
use crate::fault::Fault;
use crate::order::{key, threshold_key};
use crate::runtime::{Forest, Stop};
use crate::{BatchPredictParams, BootstrapParams, Result};

/// Draws after the first, at most: a seed that needs more gets a slightly biased index.
const REDRAWS: u32 = 16;

/// Draws of one task.
const DRAWS: usize = 1 << 12;

/// PCG-RXS-M-XS-32 of one step from `v` (Jarzynski and Olano, *Hash Functions for GPU Rendering*, 2020).
fn pcg(v: u32) -> u32 {
    let state = v.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let word = ((state >> ((state >> 28) + 4)) ^ state).wrapping_mul(277_803_737);
    (word >> 22) ^ word
}

/// A number below `max` for index `i`: the upper half of a product, drawn again if the lower half shows that it is one of the surplus draws
/// that would bias the result.
fn draw(i: u32, seed: u32, max: u32) -> u32 {
    let surplus = max.wrapping_neg() % max;
    let mut x = pcg(i.wrapping_add(pcg(seed)));
    let mut product = u64::from(x) * u64::from(max);
    for _ in 0..REDRAWS {
        if product as u32 >= surplus {
            break;
        }
        x = pcg(x);
        product = u64::from(x) * u64::from(max);
    }
    (product >> 32) as u32
}

pub(super) fn bootstrap_sample(params: BootstrapParams, output: &mut [u32]) {
    let places = output.par_iter_mut().enumerate();
    places
        .with_min_len(DRAWS)
        .for_each(|(i, index)| *index = draw(i as u32, params.seed, params.max_index));
}

/// The feature of a leaf.
const LEAF: u32 = u32::MAX;

struct Walker<'a> {
    forest: &'a Forest<'a, Words>,
    features: usize,
}

impl Walker<'_> {
    /// The leaf's value that `sample` comes to in `tree`.
    fn walk(&self, tree: u32, sample: u32) -> std::result::Result<f32, Fault> {
        let Forest {
            samples,
            nodes,
            offsets,
            node_count,
            depth,
        } = *self.forest;
        let (samples, nodes): (&[u32], &[u32]) = (samples, nodes);
        let root = offsets[tree as usize];
        if root >= node_count {
            let (node, nodes) = (root, node_count);
            return Err(Fault::Root { tree, node, nodes });
        }
        let row = sample as usize * self.features;
        let mut node = 0;
        for step in 0..=depth {
            let at = (root + node) as usize * 4;
            let [feature, value, left, right] = [0, 1, 2, 3].map(|i| nodes[at + i]);
            if feature == LEAF {
                return Ok(f32::from_bits(value));
            }
            if step == depth {
                break;
            }
            if feature as usize >= self.features {
                return Err(Fault::Feature {
                    tree,
                    sample,
                    feature,
                });
            }
            let is_left = key(samples[row + feature as usize]) <= threshold_key(value);
            let child = if is_left { left } else { right };
            if child >= node_count - root {
                return Err(Fault::Child {
                    tree,
                    sample,
                    child,
                });
            }
            node = child;
        }
        Err(Fault::Depth { tree, sample, node })
    }
}

pub(super) fn batch_predict(
    params: BatchPredictParams,
    forest: Forest<'_, Words>,
    output: &mut [f32],
    stop: &Stop,
) -> Result<()> {
    let walker = Walker {
        forest: &forest,
        features: params.n_features as usize,
    };
    let samples = output.par_iter_mut().enumerate();
    // Every sample gets its value, whatever is wrong with others.
    let faults = samples.filter_map(|(sample, out)| {
        stop.check().ok()?;
        let leaves = (0..params.n_trees).map(|tree| walker.walk(tree, sample as u32));
        let sum = leaves
            .map(|leaf| leaf.map(f64::from))
            .sum::<std::result::Result<f64, Fault>>();
        *out = match sum {
            Ok(sum) => (sum / f64::from(params.n_trees)) as f32,
            Err(_) => f32::NAN,
        };
        sum.err().map(|fault| (sample, fault))
    });
    let first = faults.min_by_key(|(sample, _)| *sample);
    stop.check()?;
    match first {
        Some((_, fault)) => Err(fault.into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::draw;

    /// Indices that occur among 353 draws below 353.
    fn drawn(seed: u32) -> std::collections::HashSet<u32> {
        (0..353).map(|i| draw(i, seed, 353)).collect()
    }

    #[test]
    fn neighbouring_seeds_are_independent() {
        let mut shared = 0;
        let mut distinct = 0;
        for seed in 0..200 {
            let (a, b) = (drawn(seed), drawn(seed + 1));
            distinct += a.len();
            let union = a.union(&b).count();
            assert!(union <= 353);
            shared += a.intersection(&b).count();
        }
        // For independent draws: 1 - 1/e of all, and the square of that in both.
        let of_all = |count: i32| f64::from(count) / f64::from(200 * 353);
        let (distinct, shared) = (of_all(distinct as i32), of_all(shared as i32));
        assert!((distinct - 0.632).abs() < 0.005, "{distinct}");
        assert!((shared - 0.3996).abs() < 0.005, "{shared}");
    }
}
