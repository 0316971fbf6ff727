//! Scores of thresholds: each row's place among the sorted thresholds, and running sums over the places.

use rayon::prelude::*;

use super::Words;
use crate::fault::Fault;
use crate::order::{key, threshold_key};
use crate::runtime::SplitInputs;
use crate::{FindSplitParams, Result};

/// Rows of one task: fewer take less time than to hand them to a thread.
const CHUNK: usize = 1 << 12;

/// Sums over some of the rows.
#[derive(Clone, Copy, Default)]
struct Sums {
    count: usize,
    values: f64,
    squares: f64,
}

impl Sums {
    fn plus(self, other: &Self) -> Self {
        Self {
            count: self.count + other.count,
            values: self.values + other.values,
            squares: self.squares + other.squares,
        }
    }

    /// The sum of the squared differences of the values from their mean.
    fn squared_error(self) -> f64 {
        let error = self.squares - self.values * self.values / self.count as f64;
        // Not f64::max, which would make 0 of NaN.
        if error < 0. {
            0.
        } else {
            error
        }
    }
}

pub(super) fn find_split(
    params: FindSplitParams,
    inputs: SplitInputs<'_, Words>,
    output: &mut [u32],
) -> Result<()> {
    let SplitInputs {
        data,
        labels,
        indices,
        thresholds,
        rows,
    } = inputs;
    let data: &[u32] = data;
    let count = params.n_samples as usize;
    let (features, feature) = (params.n_features as usize, params.feature_idx as usize);
    let labels: &[f32] = bytemuck::cast_slice(labels);
    let indices = &indices[..count];
    let wrong = indices.iter().position(|index| *index >= rows);
    if let Some(position) = wrong {
        return Err(Fault::Index {
            position: position as u32,
            index: indices[position],
            rows,
        }
        .into());
    }
    // In ascending order, with the place of each; often they come so.
    let thresholds = thresholds[..params.n_thresholds as usize].iter();
    let mut cuts: Vec<(u32, u32)> = (0..)
        .zip(thresholds)
        .map(|(place, threshold)| (threshold_key(*threshold), place))
        .collect();
    cuts.par_sort_unstable();
    let label = |index: u32| f64::from(labels[index as usize]);
    // About the mean, so that squares do not drown what differs.
    let mean = indices.iter().map(|index| label(*index)).sum::<f64>() / count.max(1) as f64;
    // The sums of the rows between two thresholds, those equal to the upper one among them.
    let mut between = vec![Sums::default(); cuts.len() + 1];
    let mut add = |index: u32, place: usize| {
        let y = label(index) - mean;
        let sums = &mut between[place];
        sums.count += 1;
        sums.values += y;
        sums.squares += y * y;
    };
    let place = |index: u32| {
        let key = key(data[index as usize * features + feature]);
        cuts.partition_point(|cut| cut.0 < key)
    };
    if count <= CHUNK {
        indices.iter().for_each(|index| add(*index, place(*index)));
    } else {
        let places = indices
            .par_iter()
            .with_min_len(CHUNK)
            .map(|index| place(*index));
        let places: Vec<usize> = places.collect();
        let rows = indices.iter().zip(places);
        rows.for_each(|(index, place)| add(*index, place));
    }
    let all = between.iter().fold(Sums::default(), Sums::plus);
    let mut left = Sums::default();
    for ((_, place), sums) in cuts.iter().zip(&between) {
        left = left.plus(sums);
        let right = Sums {
            count: count - left.count,
            values: all.values - left.values,
            squares: all.squares - left.squares,
        };
        let score = match (left.count, right.count) {
            (0, _) | (_, 0) => f64::INFINITY,
            _ => left.squared_error() + right.squared_error(),
        };
        output[*place as usize] = (score as f32).to_bits();
    }
    Ok(())
}
