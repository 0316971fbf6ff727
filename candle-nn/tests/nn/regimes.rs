//! The kernels for adapters that lack optional features, on an adapter that has them.

candle_core::with_webgpu! {
    use super::common::runs_fewer;
    use super::{attention_sizes, linear, linear_extras, linear_quantized, norms, rope_append};
    use candle_core::{Device, Result};

    /// If compiling is slow, the default run covers half of them: one half without subgroups, the other without matrices and f16.
    fn on_each_body(device: &Device, half: usize) -> Result<()> {
        let bodies: [fn(&Device) -> Result<()>; 11] = [
            linear::with_norm,
            linear::with_residual,
            linear_quantized::of_every_layout,
            linear::long_inner_dimension,
            linear_extras::of_dense_weights,
            linear_quantized::of_large_weights,
            rope_append::heads,
            linear_extras::of_long_rows,
            norms::fused_norms,
            attention_sizes::large_scores,
            attention_sizes::few_queries_of_many_keys,
        ];
        let all = !runs_fewer(device);
        let mut run = (0..).zip(bodies).filter(|(i, _)| all || i % 2 == half);
        run.try_for_each(|(_, body)| body(device))
    }

    /// Attention without the cooperative attention kernel, composed of cooperative matrix products.
    #[test]
    fn without_cooperative_attention_webgpu() -> Result<()> {
        let device = Device::WebGpu(super::common::webgpu_without("-coop-attention")?);
        // A software adapter has no such matrices, so there `sizes::webgpu` has run the same kernels.
        if !device.is_software_gpu() {
            attention_sizes::sizes(&device)?;
        }
        attention_sizes::moving_maxima(&device)
    }

    #[test]
    fn without_subgroups_webgpu() -> Result<()> {
        let device = super::common::webgpu_without("-subgroups")?;
        on_each_body(&Device::WebGpu(device), 0)
    }

    #[test]
    fn without_cooperative_matrices_webgpu() -> Result<()> {
        let device = super::common::webgpu_without("-coop,-f16")?;
        on_each_body(&Device::WebGpu(device), 1)
    }

    #[test]
    fn unknown_features_webgpu() {
        let error = super::common::webgpu_without("-warp")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("-warp") && error.contains("-subgroups"),
            "{error}"
        );
    }
}
