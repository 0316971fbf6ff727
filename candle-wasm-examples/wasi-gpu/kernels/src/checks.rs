//! Validation of calls. Sizes are computed in 128 bits, in which a guest's arguments cannot overflow.

use crate::{
    AverageParams, BatchPredictParams, BootstrapParams, BufferId, ElementwiseOp, ElementwiseParams,
    FindSplitParams, GpuError, MatmulParams, ReduceParams, Result,
};

/// Comparisons or steps that one call may ask for: minutes of a fast GPU. It bounds how much work a guest can queue in one call.
const MOST_WORK: u128 = 1 << 46;

/// Bytes of a float, an index or an offset.
const WORD: u128 = 4;

/// Bytes of a tree's node.
pub(crate) const NODE: u64 = 16;

pub(crate) fn invalid<T>(what: String) -> Result<T> {
    Err(GpuError::InvalidParams(what))
}

/// Whether bytes `offset..offset + size` are inside a buffer of `bytes`.
pub(crate) fn range(
    call: &str,
    buffer: BufferId,
    bytes: u64,
    offset: u64,
    size: u64,
) -> Result<()> {
    let end = offset.checked_add(size);
    if end.is_some_and(|end| end <= bytes) {
        return Ok(());
    }
    invalid(format!(
        "{call}: {size} bytes from byte {offset} on were asked for, buffer {buffer} has {bytes} bytes"
    ))
}

/// A kernel's buffer: its name in the interface, and its size.
pub(crate) struct Given {
    pub(crate) kernel: &'static str,
    pub(crate) buffer: &'static str,
    pub(crate) bytes: u64,
}

impl Given {
    fn holds(&self, words: u128, what: &str) -> Result<()> {
        let needed = words * WORD;
        if needed <= u128::from(self.bytes) {
            return Ok(());
        }
        invalid(format!(
            "{}: {} needs {needed} bytes for {what}, the buffer has {}: make it larger, or lower the counts",
            self.kernel, self.buffer, self.bytes
        ))
    }
}

fn not_zero(kernel: &str, what: &str, count: u32) -> Result<()> {
    if count > 0 {
        return Ok(());
    }
    invalid(format!("{kernel}: {what} is 0, it must be at least 1"))
}

fn little_enough(kernel: &str, work: u128, hint: &str) -> Result<()> {
    if work <= MOST_WORK {
        return Ok(());
    }
    invalid(format!(
        "{kernel}: {work} steps were asked for in one call, the most is {MOST_WORK}: {hint}"
    ))
}

/// Refuses an output that is also an input.
pub(crate) fn distinct(
    kernel: &str,
    output: (&str, BufferId),
    inputs: &[(&str, BufferId)],
) -> Result<()> {
    for (name, id) in inputs {
        if *id == output.1 {
            return invalid(format!(
                "{kernel}: {} and {name} are both buffer {id}, they must differ: write to another buffer",
                output.0
            ));
        }
    }
    Ok(())
}

/// Whether there is something to do. So do the others.
pub(crate) fn bootstrap_sample(params: &BootstrapParams, output: Given) -> Result<bool> {
    not_zero(output.kernel, "max-index", params.max_index)?;
    output.holds(params.n_samples.into(), "n-samples indices")?;
    Ok(params.n_samples > 0)
}

pub(crate) struct SplitBuffers {
    pub(crate) data: u64,
    pub(crate) labels: u64,
    pub(crate) indices: Given,
    pub(crate) thresholds: Given,
    pub(crate) scores: Given,
}

/// The number of rows, if there is something to do.
pub(crate) fn find_split(params: &FindSplitParams, buffers: SplitBuffers) -> Result<Option<u32>> {
    const KERNEL: &str = "find-split";
    let FindSplitParams {
        n_samples,
        n_features,
        feature_idx,
        n_thresholds,
    } = *params;
    not_zero(KERNEL, "n-features", n_features)?;
    if feature_idx >= n_features {
        return invalid(format!(
            "{KERNEL}: feature-idx is {feature_idx}, it must be below n-features, {n_features}"
        ));
    }
    buffers
        .indices
        .holds(n_samples.into(), "n-samples indices")?;
    let thresholds = n_thresholds.into();
    buffers.thresholds.holds(thresholds, "n-thresholds f32")?;
    buffers.scores.holds(thresholds, "n-thresholds f32")?;
    little_enough(
        KERNEL,
        u128::from(n_samples) * thresholds,
        "pass fewer thresholds at a time",
    )?;
    let rows = (buffers.labels / 4).min(buffers.data / 4 / u64::from(n_features));
    let rows = u32::try_from(rows).unwrap_or(u32::MAX);
    Ok((n_thresholds > 0).then_some(rows))
}

pub(crate) fn average(params: &AverageParams, predictions: Given, output: Given) -> Result<bool> {
    not_zero(output.kernel, "n-trees", params.n_trees)?;
    let (rows, trees) = (u128::from(params.n_samples), u128::from(params.n_trees));
    predictions.holds(rows * trees, "n-samples · n-trees f32")?;
    output.holds(rows, "n-samples f32")?;
    Ok(rows > 0)
}

pub(crate) fn matmul(params: &MatmulParams, a: Given, b: Given, c: Given) -> Result<bool> {
    let [m, k, n] = [params.m, params.k, params.n].map(u128::from);
    a.holds(m * k, "m · k f32")?;
    b.holds(k * n, "k · n f32")?;
    c.holds(m * n, "m · n f32")?;
    Ok(m * n > 0)
}

impl ElementwiseOp {
    /// Whether it takes two operands.
    pub(crate) fn is_binary(self) -> bool {
        matches!(self, Self::Add | Self::Mul)
    }
}

pub(crate) fn elementwise(
    params: &ElementwiseParams,
    a: Given,
    b: Option<Given>,
    output: Given,
) -> Result<bool> {
    let count = u128::from(params.n_elements);
    let what = "n-elements f32";
    a.holds(count, what)?;
    if params.op.is_binary() {
        let Some(b) = b else {
            return invalid(format!(
                "{}: {:?} takes two operands: pass input-b",
                a.kernel, params.op
            ));
        };
        b.holds(count, what)?;
    }
    output.holds(count, what)?;
    Ok(count > 0)
}

pub(crate) fn reduce(params: &ReduceParams, input: Given, output: Given) -> Result<()> {
    not_zero(input.kernel, "n-elements", params.n_elements)?;
    input.holds(params.n_elements.into(), "n-elements f32")?;
    output.holds(1, "1 f32")
}

/// The limits of a walk down a tree.
pub(crate) struct Walk {
    pub(crate) node_count: u32,
    pub(crate) depth: u32,
}

pub(crate) fn batch_predict(
    params: &BatchPredictParams,
    samples: Given,
    nodes: u64,
    offsets: Given,
    output: Given,
) -> Result<Option<Walk>> {
    const KERNEL: &str = "batch-predict";
    not_zero(KERNEL, "n-trees", params.n_trees)?;
    let (rows, trees) = (u128::from(params.batch_size), u128::from(params.n_trees));
    let values = rows * u128::from(params.n_features);
    samples.holds(values, "batch-size · n-features f32")?;
    offsets.holds(trees, "n-trees u32")?;
    output.holds(rows, "batch-size f32")?;
    let node_count = u32::try_from(nodes / NODE).unwrap_or(u32::MAX);
    let depth = params.max_depth.min(node_count);
    little_enough(
        KERNEL,
        rows * trees * (u128::from(depth) + 1),
        "lower max-depth to what the trees have, or pass fewer samples at a time",
    )?;
    Ok((rows > 0).then_some(Walk { node_count, depth }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(bytes: u64) -> Given {
        Given {
            kernel: "kernel",
            buffer: "buffer",
            bytes,
        }
    }

    #[test]
    fn nothing_overflows() {
        let most = u32::MAX;
        let params = MatmulParams {
            m: most,
            k: most,
            n: most,
            trans_a: false,
            trans_b: false,
            alpha: 1.,
            beta: 0.,
        };
        let all = u64::MAX;
        assert!(matmul(&params, given(all), given(all), given(all)).is_err());
        assert!(range("call", 1, 10, all, 1).is_err());
        assert!(range("call", 1, 10, 1, all).is_err());
        assert!(range("call", 1, 10, 10, 0).is_ok());
        assert!(range("call", 1, 10, 11, 0).is_err());
        let params = BatchPredictParams {
            batch_size: most,
            n_features: most,
            n_trees: most,
            max_depth: most,
        };
        let call = batch_predict(&params, given(all), all, given(all), given(all));
        assert!(call.is_err());
    }

    #[test]
    fn work_is_bounded() {
        let split = |n: u32, thresholds: u32| {
            let params = FindSplitParams {
                n_samples: n,
                n_features: 1,
                feature_idx: 0,
                n_thresholds: thresholds,
            };
            let buffers = SplitBuffers {
                data: 40,
                labels: 80,
                indices: given(u64::MAX),
                thresholds: given(u64::MAX),
                scores: given(u64::MAX),
            };
            find_split(&params, buffers)
        };
        assert_eq!(split(1 << 23, 1 << 23).unwrap(), Some(10));
        let error = split(1 << 23, (1 << 23) + 1).unwrap_err().to_string();
        assert!(error.contains("fewer thresholds"), "{error}");
        assert_eq!(split(1, 0).unwrap(), None);
    }
}
