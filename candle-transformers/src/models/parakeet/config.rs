//! The `config.json` of a Parakeet.

use candle_core::{bail, Result};
use candle_nn::Activation;
use serde::Deserialize;

use super::FAMILY;
use crate::blocks::encoder::head_dim;

/// The fields of `config.json`, as Transformers names them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Config {
    /// Tokens, among them the blank.
    pub vocab_size: usize,
    /// The blank, by default the last token.
    pub pad_token_id: Option<u32>,
    /// The encoder.
    pub encoder_config: EncoderConfig,
}

/// The fields of `encoder_config`. Those that are missing have Transformers' defaults, which are parakeet-ctc-1.1b's but for its layers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct EncoderConfig {
    /// The size of a vector.
    pub hidden_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Heads of attention, which divide `hidden_size`.
    pub num_attention_heads: usize,
    /// The inner size of feed-forward blocks.
    pub intermediate_size: usize,
    /// The activation of feed-forward blocks and convolutions.
    pub hidden_act: Activation,
    /// Whether the linear layers of attention and of feed-forward blocks have biases.
    pub attention_bias: bool,
    /// Whether convolutions have biases.
    pub convolution_bias: bool,
    /// Kernel size of the convolutions; odd.
    pub conv_kernel_size: usize,
    /// Frames of the spectrogram for a vector; a power of `subsampling_conv_stride`, which is 2.
    pub subsampling_factor: usize,
    /// Channels of the convolutions that leave frames out.
    pub subsampling_conv_channels: usize,
    /// The size of their kernels; odd.
    pub subsampling_conv_kernel_size: usize,
    /// Their stride; has to be 2.
    pub subsampling_conv_stride: usize,
    /// Bands of the spectrogram.
    pub num_mel_bins: usize,
    /// Whether vectors are multiplied with the root of `hidden_size`.
    pub scale_input: bool,
}

impl Default for EncoderConfig {
    fn default() -> Self {
        Self {
            hidden_size: 1024,
            num_hidden_layers: 24,
            num_attention_heads: 8,
            intermediate_size: 4096,
            hidden_act: Activation::Silu,
            attention_bias: true,
            convolution_bias: true,
            conv_kernel_size: 9,
            subsampling_factor: 8,
            subsampling_conv_channels: 256,
            subsampling_conv_kernel_size: 3,
            subsampling_conv_stride: 2,
            num_mel_bins: 80,
            scale_input: true,
        }
    }
}

impl Config {
    /// The blank's token.
    pub(super) fn blank(&self) -> Result<u32> {
        let last = self.vocab_size.saturating_sub(1) as u32;
        let blank = self.pad_token_id.unwrap_or(last);
        if blank as usize >= self.vocab_size {
            bail!(
                "{FAMILY} config: pad_token_id is {blank}; it must be below the vocab_size {}",
                self.vocab_size
            )
        } else {
            Ok(blank)
        }
    }
}

impl EncoderConfig {
    /// The size of a head, if all numbers fit each other.
    pub(super) fn check(&self) -> Result<usize> {
        for (name, size) in [
            ("num_hidden_layers", self.num_hidden_layers),
            ("intermediate_size", self.intermediate_size),
            ("subsampling_conv_channels", self.subsampling_conv_channels),
            ("num_mel_bins", self.num_mel_bins),
        ] {
            if size == 0 {
                bail!("{FAMILY} config: {name} is 0; it must be at least 1")
            }
        }
        for (name, size) in [
            ("conv_kernel_size", self.conv_kernel_size),
            (
                "subsampling_conv_kernel_size",
                self.subsampling_conv_kernel_size,
            ),
        ] {
            if size.is_multiple_of(2) {
                bail!("{FAMILY} config: {name} is {size}; it must be odd")
            }
        }
        let (factor, stride) = (self.subsampling_factor, self.subsampling_conv_stride);
        if stride != 2 || factor < 2 || !factor.is_power_of_two() {
            bail!(
                "{FAMILY} config: subsampling_factor is {factor} and subsampling_conv_stride {stride}; expected a power of 2, and 2"
            )
        }
        if self.num_mel_bins < factor {
            bail!(
                "{FAMILY} config: num_mel_bins is {}; it must be at least the subsampling_factor {factor}",
                self.num_mel_bins
            )
        }
        if !self.hidden_size.is_multiple_of(2) {
            bail!(
                "{FAMILY} config: hidden_size is {}; it must be even for sinusoidal positions",
                self.hidden_size
            )
        }
        let heads = ("num_attention_heads", self.num_attention_heads);
        head_dim(FAMILY, ("hidden_size", self.hidden_size), heads)
    }
}
