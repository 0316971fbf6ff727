//! Segment Anything by its parts, of the smallest sizes, and whole, whose image has 1024x1024 pixels whatever the sizes are.

use candle_core::{test_device, DType, Device, IndexOp, Module, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::segment_anything::image_encoder::ImageEncoderViT;
use candle_transformers::models::segment_anything::mask_decoder::MaskDecoder;
use candle_transformers::models::segment_anything::prompt_encoder::PromptEncoder;
use candle_transformers::models::segment_anything::sam::{Prompt, Sam, IMAGE_SIZE};
use candle_transformers::models::segment_anything::tiny_vit::TinyViT;
use candle_transformers::models::segment_anything::transformer::TwoWayTransformer;
use candle_transformers::models::segment_anything::LayerNorm2d;
use candle_transformers::object_detection::{iou, Bbox};

use super::support::{assert_close, runs_fewer, Numbers};
use super::vision::{check, module, pictures, weights, Forward, Made};

/// An error, whose text has all of `parts`.
#[track_caller]
fn assert_refused<T>(result: Result<T>, parts: &[&str]) {
    let Err(err) = result else {
        panic!("it is accepted, but {parts:?}")
    };
    let text = err.to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}

/// Blocks within windows that do not divide the image, and one of the whole.
fn vision_transformer(device: &Device) -> Result<()> {
    for (bias, relative, absolute, window) in [
        (true, true, true, 3),
        (false, false, true, 3),
        (true, true, false, 0),
    ] {
        let load = |vb| -> Result<Forward> {
            Ok(module(ImageEncoderViT::new(
                64,
                8,
                3,
                32,
                3,
                2,
                8,
                bias,
                relative,
                absolute,
                window,
                &[1],
                vb,
            )?))
        };
        check(device, load, [3, 64, 64], &[&[1, 3, 64, 56]])?;
    }
    let refused = |image, patch, size, heads| {
        let vb = weights(DType::F32, device);
        let on = true;
        ImageEncoderViT::new(image, patch, 3, size, 1, heads, 8, on, on, on, 3, &[], vb)
    };
    assert_refused(refused(64, 8, 32, 3), &["3 heads", "size 32"]);
    assert_refused(refused(64, 0, 32, 2), &["patch_size 0"]);
    assert_refused(refused(4, 8, 32, 2), &["patch_size 8", "image_size 4"]);
    Ok(())
}
test_device!(vision_transformer);

fn tiny_vit(device: &Device) -> Result<()> {
    let load = |vb| -> Result<Forward> {
        let model = TinyViT::new(&[8, 12, 16], &[1, 1, 2], &[1, 2, 4], &[0, 5, 2], 10, vb)?;
        Ok(module(model))
    };
    check(device, load, [3, 64, 96], &[])?;
    let vb = || weights(DType::F32, device);
    let features = load(vb())?(&pictures([1, 3, 64, 96], device)?)?;
    assert_eq!(features.dims(), &[1, 256, 4, 6]);
    // A last stage of this width is as large as the one before it.
    let model = TinyViT::new(&[8, 12, 16, 320], &[1; 4], &[2; 4], &[3; 4], 10, vb())?;
    let features = model.forward(&pictures([1, 3, 32, 64], device)?)?;
    assert_eq!(features.dims(), &[1, 256, 2, 4]);

    let refused = |sizes: &[usize], heads: &[usize], windows: &[usize]| {
        TinyViT::new(sizes, &[1, 1], heads, windows, 10, vb())
    };
    assert_refused(refused(&[8, 12, 16], &[1, 1], &[1, 1]), &["embed_dims"]);
    assert_refused(refused(&[8], &[1], &[1]), &["at least two"]);
    assert_refused(refused(&[7, 12], &[1, 1], &[1, 1]), &["even"]);
    assert_refused(refused(&[8, 12], &[1, 5], &[1, 1]), &["5 heads"]);
    assert_refused(refused(&[8, 12], &[1, 1], &[1, 0]), &["window_sizes"]);
    Ok(())
}
test_device!(tiny_vit);

fn norm_of_channels(device: &Device) -> Result<()> {
    let norm = LayerNorm2d::new(3, 1e-6, weights(DType::F32, device))?;
    let vb = weights(DType::F32, device);
    let (weight, bias) = (vb.get(3, "weight")?, vb.get(3, "bias")?);
    let xs = pictures([2, 3, 4, 5], device)?;
    let centred = xs.broadcast_sub(&xs.mean_keepdim(1)?)?;
    let variance = (centred.sqr()?.mean_keepdim(1)? + 1e-6)?;
    let expected = centred
        .broadcast_div(&variance.sqrt()?)?
        .broadcast_mul(&weight.reshape((1, 3, 1, 1))?)?
        .broadcast_add(&bias.reshape((1, 3, 1, 1))?)?;
    assert_close(&norm.forward(&xs)?, &expected, 1e-5);
    Ok(())
}
test_device!(norm_of_channels);

const SIZE: usize = 32;

/// For embeddings of 5x6 positions of an image of 40 rows and 48 columns.
fn prompt_encoder(dtype: DType, device: &Device) -> Result<PromptEncoder> {
    PromptEncoder::new(SIZE, (5, 6), (40, 48), 8, weights(dtype, device))
}

/// The paper's formula, in f64: sines and cosines of the projections of a point, from -1 to 1 in both directions, in full circles.
fn position(vb: &VarBuilder, [x, y]: [f64; 2]) -> Result<Vec<f64>> {
    let name = "positional_encoding_gaussian_matrix";
    let projections = vb.pp("pe_layer").get((2, SIZE / 2), name)?;
    let projections = projections.to_device(&Device::Cpu)?.to_vec2::<f32>()?;
    let angles = projections[0].iter().zip(&projections[1]).map(|(a, b)| {
        let turns = (2. * x - 1.) * f64::from(*a) + (2. * y - 1.) * f64::from(*b);
        std::f64::consts::TAU * turns
    });
    let angles: Vec<f64> = angles.collect();
    let (sines, cosines) = (
        angles.iter().map(|a| a.sin()),
        angles.iter().map(|a| a.cos()),
    );
    Ok(sines.chain(cosines).collect())
}

/// The vector that makes a position a point or a corner.
fn kind(vb: &VarBuilder, name: &str) -> Result<Vec<f32>> {
    vb.pp(name)
        .get((1, SIZE), "weight")?
        .flatten_all()?
        .to_vec1()
}

fn prompts_by_the_formula(device: &Device) -> Result<()> {
    let (vb, encoder) = (
        weights(DType::F32, device),
        prompt_encoder(DType::F32, device)?,
    );
    let expected = |[x, y]: [f64; 2], name: &str| -> Result<Vec<f32>> {
        let place = position(&vb, [(x + 0.5) / 48., (y + 0.5) / 40.])?;
        let kind = kind(&vb, name)?;
        Ok(place.iter().zip(kind).map(|(p, k)| *p as f32 + k).collect())
    };
    // Corners, which Candle cannot encode: the image has other sides than the grid.
    let boxes = Tensor::new(&[[3f32, 4., 40., 30.], [0., 0., 47., 39.]], device)?;
    let (sparse, dense) = encoder.forward(None, Some(&boxes), None)?;
    assert_eq!(
        (sparse.dims(), dense.dims()),
        (&[2, 2, SIZE][..], &[1, SIZE, 5, 6][..])
    );
    let corners = vec![
        vec![
            expected([3., 4.], "point_embeddings.2")?,
            expected([40., 30.], "point_embeddings.3")?,
        ],
        vec![
            expected([0., 0.], "point_embeddings.2")?,
            expected([47., 39.], "point_embeddings.3")?,
        ],
    ];
    assert_close(&sparse, &Tensor::new(corners, device)?, 1e-4);

    let points = Tensor::new(&[[[7f32, 9.], [30., 2.], [5., 5.]]], device)?;
    let labels = Tensor::new(&[[1f32, 0., -1.]], device)?;
    let none = kind(&vb, "not_a_point_embed")?;
    let mut rows = vec![
        expected([7., 9.], "point_embeddings.1")?,
        expected([30., 2.], "point_embeddings.0")?,
        none.clone(),
    ];
    let boxes = boxes.i(..1)?;
    let (both, _) = encoder.forward(Some((&points, &labels)), Some(&boxes), None)?;
    let of_points = Tensor::new(vec![rows.clone()], device)?;
    assert_close(&both.i((.., ..3))?, &of_points, 1e-4);
    assert_close(&both.i((.., 3..))?, &sparse.i(..1)?, 1e-6);
    // Without a box a point that is none is there.
    rows.push(none);
    let (sparse, dense) = encoder.forward(Some((&points, &labels)), None, None)?;
    assert_close(&sparse, &Tensor::new(vec![rows], device)?, 1e-4);
    let no_mask = Tensor::new(kind(&vb, "no_mask_embed")?, device)?.reshape((1, SIZE, 1, 1))?;
    assert_close(&dense, &no_mask.broadcast_as((1, SIZE, 5, 6))?, 1e-6);

    let positions = encoder.get_dense_pe()?;
    assert_eq!(positions.dims(), &[1, SIZE, 5, 6]);
    let of_one = positions.i((0, .., 1, 4))?.to_vec1::<f32>()?;
    let expected = position(&vb, [4.5 / 6., 1.5 / 5.])?;
    let expected = expected.iter().map(|x| *x as f32).collect::<Vec<_>>();
    assert_close(
        &Tensor::new(of_one, device)?,
        &Tensor::new(expected, device)?,
        1e-4,
    );
    Ok(())
}
test_device!(prompts_by_the_formula);

fn prompts_that_do_not_fit(device: &Device) -> Result<()> {
    let encoder = prompt_encoder(DType::F32, device)?;
    let masks = pictures([2, 1, 20, 24], device)?;
    let (sparse, dense) = encoder.forward(None, None, Some(&masks))?;
    assert_eq!(
        (sparse.dims(), dense.dims()),
        (&[1, 0, SIZE][..], &[2, SIZE, 5, 6][..])
    );
    let half = prompt_encoder(DType::F16, device)?;
    let (_, in_half) = half.forward(None, None, Some(&masks.to_dtype(DType::F16)?))?;
    assert_close(&in_half, &dense, 0.05);

    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, device);
    for (points, labels) in [
        (&[1, 3, 2][..], &[1, 2][..]),
        (&[1, 3, 3], &[1, 3]),
        (&[3, 2], &[3]),
        (&[2, 3, 2], &[1, 3]),
    ] {
        let result = encoder.forward(Some((&zeros(points)?, &zeros(labels)?)), None, None);
        assert_refused(
            result,
            &[&format!("{points:?}"), &format!("{labels:?}"), "must be"],
        );
    }
    for boxes in [&[2, 2, 2][..], &[2, 5], &[4]] {
        let result = encoder.forward(None, Some(&zeros(boxes)?), None);
        assert_refused(result, &[&format!("{boxes:?}"), "(batch, 4)"]);
    }
    for masks in [&[1, 20, 24][..], &[1, 3, 20, 24], &[1, 1, 20, 20]] {
        let result = encoder.forward(None, None, Some(&zeros(masks)?));
        assert_refused(result, &[&format!("{masks:?}"), "(batch, 1, 20, 24)"]);
    }
    for (size, places, inside) in [(31, 5, 8), (32, 5, 6), (32, 0, 8), (0, 5, 8)] {
        let vb = weights(DType::F32, device);
        let result = PromptEncoder::new(size, (places, 6), (40, 48), inside, vb);
        assert_refused(result, &["embed_dim", "more than 0"]);
    }
    Ok(())
}
test_device!(prompts_that_do_not_fit);

fn decoder(device: &Device) -> Result<()> {
    let load = |dtype| MaskDecoder::new(SIZE, 3, 3, 24, weights(dtype, device));
    let decoder = load(DType::F32)?;
    let mut numbers = Numbers::new(3);
    let picture = numbers.tensor(&[1, SIZE, 5, 6], 1., device)?;
    let positions = numbers.tensor(&[1, SIZE, 5, 6], 1., device)?;
    let prompts = numbers.tensor(&[2, 3, SIZE], 1., device)?;
    let dense = numbers.tensor(&[1, SIZE, 5, 6], 1., device)?;
    let forward = |picture: &Tensor, prompts: &Tensor, several| {
        decoder.forward(picture, &positions, prompts, &dense, several)
    };
    let (masks, quality) = forward(&picture, &prompts, true)?;
    assert_eq!(
        (masks.dims(), quality.dims()),
        (&[2, 3, 20, 24][..], &[2, 3][..])
    );
    let (one, quality_of_one) = forward(&picture, &prompts, false)?;
    assert_eq!(
        (one.dims(), quality_of_one.dims()),
        (&[2, 1, 20, 24][..], &[2, 1][..])
    );
    for i in 0..2 {
        let (alone, quality_alone) = forward(&picture, &prompts.i(i..i + 1)?, true)?;
        assert_close(&alone, &masks.i(i..i + 1)?, 2e-5);
        assert_close(&quality_alone, &quality.i(i..i + 1)?, 2e-5);
    }
    // An image for each prompt.
    let pictures = Tensor::cat(&[&picture, &picture], 0)?;
    let (same, _) = forward(&pictures, &prompts, true)?;
    assert_close(&same, &masks, 2e-5);
    // No tokens of a prompt.
    let none = Tensor::zeros((1, 0, SIZE), DType::F32, device)?;
    let (without, _) = forward(&picture, &none, true)?;
    assert_eq!(without.dims(), &[1, 3, 20, 24]);

    let half = |xs: &Tensor| xs.to_dtype(DType::F16);
    let (in_half, _) = load(DType::F16)?.forward(
        &half(&picture)?,
        &half(&positions)?,
        &half(&prompts)?,
        &half(&dense)?,
        true,
    )?;
    assert_close(&in_half, &masks, 0.05);

    let three = Tensor::cat(&[&pictures, &picture], 0)?;
    assert_refused(
        forward(&three, &prompts, true),
        &["[3, 32, 5, 6]", "[2, 3, 32]"],
    );
    let narrow = prompts.narrow(2, 0, 16)?;
    assert_refused(forward(&picture, &narrow, true), &["[2, 3, 16]", "must be"]);
    let vb = || weights(DType::F32, device);
    assert_refused(
        MaskDecoder::new(40, 3, 3, 24, vb()),
        &["transformer_dim is 40", "16"],
    );
    assert_refused(MaskDecoder::new(32, 3, 0, 24, vb()), &["iou_head_depth 0"]);
    let single = MaskDecoder::new(SIZE, 0, 1, 24, vb())?;
    let result = single.forward(&picture, &positions, &prompts, &dense, true);
    assert_refused(result, &["one mask"]);
    assert_refused(TwoWayTransformer::new(1, 32, 3, 8, vb()), &["3 heads"]);
    assert_refused(TwoWayTransformer::new(1, 32, 0, 8, vb()), &["0 heads"]);
    Ok(())
}
test_device!(decoder);

/// Weights of a model that finds its masks good, and whose masks are plain.
struct Sure(Made);

impl SimpleBackend for Sure {
    fn get(&self, s: Shape, name: &str, i: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let weight = self.0.get(s, name, i, dtype, dev)?;
        match name.trim_start_matches("mask_decoder.") {
            "iou_prediction_head.layers.2.weight" => weight * 0.01,
            "iou_prediction_head.layers.2.bias" => weight.ones_like(),
            name if name.starts_with("output_hyper") && name.ends_with("2.weight") => {
                weight * 1000.
            }
            _ => Ok(weight),
        }
    }

    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor> {
        self.0.get_unchecked(name, dtype, dev)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.contains_tensor(name)
    }
}

fn sam(dtype: DType, device: &Device) -> Result<Sam> {
    let made = Made {
        vars: false,
        without: "",
        gain: 1.,
    };
    let vb = VarBuilder::from_backend(Box::new(Sure(made)), dtype, device.clone());
    Sam::new(16, 1, 1, &[], vb)
}

fn photo(h: usize, w: usize, device: &Device) -> Result<Tensor> {
    let photo = Numbers::new(9).tensor(&[3, h, w], 127., device)?;
    (photo + 127.)?.to_dtype(DType::U8)
}

fn whole(device: &Device) -> Result<()> {
    let (sam, photo) = (sam(DType::F32, device)?, photo(600, 1000, device)?);
    let seen = sam.preprocess(&photo)?;
    assert_eq!(seen.dims(), &[3, IMAGE_SIZE, IMAGE_SIZE]);
    let filled = seen
        .i((.., 600.., ..))?
        .abs()?
        .max_all()?
        .to_scalar::<f32>()?;
    assert_eq!(filled, 0.);
    let back = sam.unpreprocess(&seen.i((.., ..600, ..1000))?)?;
    assert_close(&back, &photo.to_dtype(DType::F32)?, 1e-5);

    let points = [(0.5, 0.5, true), (0.1, 0.9, false)];
    let embeddings = sam.embeddings(&photo)?;
    assert_eq!(embeddings.dims(), &[1, 256, 64, 64]);
    let (low, quality) = sam.forward_for_embeddings(&embeddings, 600, 1000, &points, true)?;
    assert_eq!(
        (low.dims(), quality.dims()),
        (&[1, 3, 256, 256][..], &[1, 3][..])
    );
    let scale = low.abs()?.max_all()?.to_scalar::<f32>()?;
    // It encodes the image once more: a minute on a software adapter.
    if !runs_fewer(device) {
        let (masks, same) = sam.forward(&photo, &points, true)?;
        assert_eq!(masks.dims(), &[3, 600, 1000]);
        assert_close(&same, &quality, 1e-5);
        let near = |a: f32, b: f32| (a - b).abs() < 1e-4 * scale;
        for [mask, y, x] in [[0, 0, 0], [1, 599, 999], [2, 302, 41]] {
            let (low, large) = (low.i((0, mask, y / 4, x / 4))?, masks.i((mask, y, x))?);
            assert!(near(large.to_scalar::<f32>()?, low.to_scalar::<f32>()?));
        }
    }
    // A box alone, and a mask with nothing else, matter.
    let prompt = |bounds, mask| Prompt {
        bounds,
        mask,
        ..Default::default()
    };
    let of = |prompt| -> Result<Tensor> {
        Ok(sam
            .forward_for_prompt(&embeddings, 600, 1000, &prompt, false)?
            .0)
    };
    let nothing = of(prompt(None, None))?;
    assert_eq!(nothing.dims(), &[1, 1, 256, 256]);
    let first = low.narrow(1, 0, 1)?;
    for other in [
        of(prompt(Some([0.2, 0.2, 0.9, 0.8]), None))?,
        of(prompt(None, Some(&first)))?,
    ] {
        let apart = (other - &nothing)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(apart > 1e-3 * scale, "{apart} of {scale}");
    }
    assert_refused(of(prompt(Some([f64::NAN, 0., 1., 1.]), None)), &["NaN"]);
    for dims in [(3, 1025, 10), (3, 10, 1025), (1, 10, 10), (3, 0, 10)] {
        let photo = Tensor::zeros(dims, DType::U8, device)?;
        assert_refused(
            sam.embeddings(&photo),
            &["must be (3, height, width)", "resize"],
        );
    }
    Ok(())
}
test_device!(whole);

/// The boxes are those of the masks, and no two are nearly the same.
#[track_caller]
fn assert_boxes(found: &[Bbox<Tensor>]) -> Result<()> {
    assert!(!found.is_empty());
    for (i, mask) in found.iter().enumerate() {
        assert!(mask.confidence >= 0.88);
        assert_eq!(mask.data.dims(), &[256, 256]);
        let inside = mask.data.flatten_all()?.to_vec1::<u32>()?;
        let places = (0..inside.len()).filter(|i| inside[*i] == 1);
        let (mut x, mut y) = ([255f32, 0.], [255f32, 0.]);
        for place in places {
            let (column, row) = ((place % 256) as f32, (place / 256) as f32);
            x = [x[0].min(column), x[1].max(column)];
            y = [y[0].min(row), y[1].max(row)];
        }
        let of_box = [mask.xmin, mask.xmax, mask.ymin, mask.ymax];
        assert_eq!(of_box, [x[0], x[1], y[0], y[1]]);
        assert!(found[..i].iter().all(|other| iou(mask, other) <= 0.7));
    }
    Ok(())
}

fn everything(device: &Device) -> Result<()> {
    let (sam, photo) = (sam(DType::F32, device)?, photo(600, 1000, device)?);
    assert_boxes(&sam.generate_masks(&photo, 1, 0, 0.3, 1)?)?;
    let none = sam.generate_masks(&photo, 0, 0, 0.3, 1);
    assert_refused(none, &["no points"]);
    Ok(())
}
test_device!(everything);

/// Parts of the image give masks as large as those of the whole.
#[test]
fn everything_in_parts() -> Result<()> {
    let device = Device::Cpu;
    let (sure, photo) = (sam(DType::F32, &device)?, photo(200, 300, &device)?);
    let found = sure.generate_masks(&photo, 2, 1, 0.3, 2)?;
    assert_boxes(&found)?;
    // Those of parts end with the part.
    assert!(found.iter().any(|mask| mask.xmax < 75. && mask.ymax < 50.));
    let ratio = sure.generate_masks(&photo, 4, 1, 1.5, 1);
    assert_refused(ratio, &["crop_overlap_ratio is 1.5"]);
    // A model that trusts none of its masks.
    let doubting = Sam::new(16, 1, 1, &[], VarBuilder::zeros(DType::F32, &device))?;
    assert!(doubting.generate_masks(&photo, 1, 0, 0.3, 1)?.is_empty());
    Ok(())
}
