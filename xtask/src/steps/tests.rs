//! The tests of the workspace.

use std::path::Path;

use super::{chrome, shaders};
use crate::testing::{self, Backend, Long, Names, Tests, METAL};

/// The WebGPU tests that take longest on a software adapter, most of it to compile kernels that no other test has. The tests of each op in
/// every dtype and layout, of each kind of layer, of models in f32 and of the engine's features are not among them.
const LONG: Names = &[
    (
        "candle-core",
        &[
            "backprop::gradcheck::devices_agree::webgpu",
            "conv_device::edges::webgpu",
            "conv_device::tiles::webgpu",
            "long_loops::products::webgpu",
            "long_loops::quantized_products::webgpu",
            "matmul::columns_and_depths::webgpu",
            "matmul::layouts::webgpu",
            "matmul::long_depths::webgpu",
            "memory::reductions_are_split",
            "quantized_device::activations_of_any_size::webgpu",
            "quantized_device::chosen_experts::webgpu",
            "quantized_device::layouts_batches_and_dtypes::webgpu",
            "quantized_device::no_numbers_stay_in_their_row::webgpu",
            "quantized_device::weights_beyond_a_binding_webgpu",
            "quantized_tables::products::webgpu",
            "reduce::lengths::webgpu",
            "reduce::long_rows::webgpu",
            "sort::layouts_and_dtypes::webgpu",
            "windows::convolutions::webgpu",
            "windows::sorting::webgpu",
            // Of the library, on real dispatches.
            "cooperative::tests::all_but_the_matrices",
            "grouped::tests::with_subgroups_where_there_are_some",
            "grouped::tests::without_subgroups",
        ],
    ),
    (
        "candle-nn",
        &[
            "attention_options::options_together::webgpu",
            "attention_sizes::few_queries_of_many_keys::webgpu",
            "attention_sizes::moving_maxima::webgpu",
            "attention_sizes::sizes::webgpu",
            "flash::flash_attention::webgpu",
            "flash::packed_sequences::webgpu",
            "linear_blocks::of_many_sizes::webgpu",
            "linear_quantized::beyond_a_binding_webgpu",
            "linear_quantized::of_every_format::webgpu",
            "linear_quantized::of_every_layout::webgpu",
            "paged::attention::webgpu",
            "regimes::without_subgroups_webgpu",
        ],
    ),
    (
        "candle-transformers",
        &[
            // Two of each family: f16 and bf16 beside f32.
            "in_16_bits::webgpu",
            "in_f16::webgpu",
            "half_is_near::webgpu",
            "recurrent_16_bits::webgpu",
            "_batches::webgpu",
            "both_ways::a_window_reaches_to_both_sides::webgpu",
            "both_ways::padding_changes_nothing::webgpu",
            "csm::tests::frames_are_those_of_the_parts::webgpu",
            "csm::tests::pieces_are_the_whole::webgpu",
            "detect::yolo_v3::webgpu",
            "diffusion::z_image::model::webgpu",
            "dispatches::of_a_token_with_quantised_weights_webgpu",
            "embed::vectors_do_not_depend_on_their_batch::webgpu",
            "families::kernels_of_a_layer_webgpu",
            "families::rows_of_a_batch::webgpu",
            "families::rows_of_different_lengths::webgpu",
            "parallel::from_gguf::webgpu",
            "quantized_llama::of_blocks_is_the_rounded_model::webgpu",
            "segment_anything::everything::webgpu",
            "segment_anything::whole::webgpu",
        ],
    ),
    (
        "candle-engine",
        &[
            "batch::drawn_texts_have_their_seed_stops_and_penalties_webgpu",
            "batch::kernels_are_compiled_ahead_webgpu",
            "bench::behind_a_context_and_together::webgpu",
            "bench::demo_shape::webgpu",
            "bench::keys_and_values_of_a_dtype::webgpu",
            "gguf::eight_bits::webgpu",
            "gguf::unquantised::webgpu",
            "golden::half_precision::webgpu",
            "golden::last_positions::webgpu",
            "lora::beside_a_gguf_file::webgpu",
            "pictures::alone_and_in_a_batch::webgpu",
        ],
    ),
];

/// All tests but those on CUDA and Metal and the long ones, which have separate steps. The shaders that they compile are kept for the step
/// `shaders`.
pub fn test() -> Result<String, String> {
    let tests = Tests {
        filter: "--skip ::cuda --skip ::metal",
        without: METAL,
        long: Long::Without(LONG),
        ..Tests::default()
    };
    let note = dumping(&shaders::folder(), tests)?;
    let examples = testing::doc_tests()?;
    Ok(format!("{note}; {examples} examples of the documentation"))
}

/// The long tests that [`test()`] leaves out. They add their shaders to those of `test`.
pub fn long() -> Result<String, String> {
    let folder = shaders::folder().display().to_string();
    Tests {
        filter: "--skip ::cuda --skip ::metal",
        env: &[(DUMP, &folder)],
        without: METAL,
        long: Long::Only(LONG),
        ..Tests::default()
    }
    .run_on(Backend::WebGpu)
}

/// Tests that browser limits do not affect: tests that disable features, which are already disabled, and whole models, whose kernels run with
/// these limits in other tests, and in browsers in the step `web`.
const SAME_FOR_BROWSERS: &[&str] = &[
    "regimes::without_",
    "golden::greedy_tokens",
    "golden::cache_gives_the_same_logits",
    "gguf::unquantised",
    "parts::",
    "bench::demo_shape",
];

/// The WebGPU tests again without f16, subgroups and large limits.
pub fn browser() -> Result<String, String> {
    let skip = SAME_FOR_BROWSERS.join(" --skip ");
    dumping(
        &chrome::shaders(),
        Tests {
            targets: "--tests",
            filter: &format!("webgpu --skip {skip}"),
            env: &[("CANDLE_WEBGPU_LIMITS", "browser")],
            without: METAL,
            ..Tests::default()
        },
    )
}

/// The folder that shaders are written to.
const DUMP: &str = "CANDLE_WEBGPU_DUMP_SHADERS";

/// Runs tests that write their shaders to a folder.
fn dumping(folder: &Path, tests: Tests) -> Result<String, String> {
    // Shaders of an earlier run may be stale.
    let _ = std::fs::remove_dir_all(folder);
    let folder = folder.display().to_string();
    let mut env = tests.env.to_vec();
    env.push((DUMP, folder.as_str()));
    Tests { env: &env, ..tests }.run_on(Backend::WebGpu)
}

/// The tests of candle-core with bindings and buffers so small that nearly everything is split.
pub fn tiny() -> Result<String, String> {
    // The first one's images need columns of 64 MiB: thousands of windows, and rows that exceed one. So do the sizes of the second.
    Tests {
        targets: "--test core",
        filter: "webgpu --skip convolutions_in_pieces --skip long_loops",
        env: &[("CANDLE_WEBGPU_LIMITS", "tiny")],
        ..Tests::default()
    }
    .run_on(Backend::WebGpu)
}
