//! The kernels for adapters that lack optional features, on an adapter that has them.

candle_core::with_webgpu! {
    use super::{attention_sizes, linear, linear_extras, linear_quantized, norms, rope_append};
    use candle_core::{Device, Result};

    fn on_each_body(device: &Device) -> Result<()> {
        linear::with_norm(device)?;
        linear::with_residual(device)?;
        linear::long_inner_dimension(device)?;
        linear_quantized::of_every_layout(device)?;
        linear_quantized::of_large_weights(device)?;
        linear_extras::of_dense_weights(device)?;
        linear_extras::of_long_rows(device)?;
        rope_append::heads(device)?;
        norms::fused_norms(device)?;
        attention_sizes::few_queries_of_many_keys(device)?;
        attention_sizes::large_scores(device)
    }

    /// Beside the kernel that has all of attention in it: its products alone.
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
        on_each_body(&Device::WebGpu(super::common::webgpu_without(
            "-subgroups",
        )?))
    }

    #[test]
    fn without_cooperative_matrices_webgpu() -> Result<()> {
        on_each_body(&Device::WebGpu(super::common::webgpu_without(
            "-coop,-f16",
        )?))
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
