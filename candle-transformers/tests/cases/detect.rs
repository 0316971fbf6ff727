//! YOLO, and what the example `detect` draws. The numbers are those of tests/reference/yolo.py: other networks of the same weights.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use candle_core::{bail, test_device, DType, Device, Module, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::yolo::found::{self, Limits, Object};
use candle_transformers::models::yolo::v3::{Config, YoloV3};
use candle_transformers::models::yolo::v8::{self, Size, YoloV8};
use candle_transformers::object_detection::Bbox;
use image::{Rgb, RgbImage};

use super::support::assert_close;
use super::vision::{pictures, Made};
use draw::Canvas;

#[path = "../../examples/detect/draw.rs"]
mod draw;

const PICTURE: [usize; 4] = [1, 3, 64, 96];

fn weights(gain: f32, device: &Device) -> VarBuilder<'static> {
    let made = Made {
        vars: false,
        without: "",
        gain,
    };
    VarBuilder::from_backend(Box::new(made), DType::F32, device.clone())
}

/// The results of the reference.
struct Expected {
    /// Numbers of a candidate, and candidates.
    shape: [usize; 2],
    /// Means over all candidates: of the box's numbers, of all others, and of their squares.
    boxes: [f32; 4],
    others: f32,
    squares: f32,
    /// Some candidates: the box, the first of the other numbers, and the last of them.
    candidates: [Candidate; 3],
}

type Candidate = (usize, [f32; 4], [f32; 4], [f32; 3]);

/// Within 1e-4 on the CPU and 1e-3 elsewhere, of the larger of 1 and the number that is expected.
fn check(candidates: &Tensor, expected: &Expected) -> Result<()> {
    let tolerance = match candidates.device() {
        Device::Cpu => 1e-4,
        _ => 1e-3,
    };
    let [numbers, count] = expected.shape;
    assert_eq!(candidates.dims(), &[1, numbers, count]);
    assert!(
        !candidates.track_op(),
        "the graph of a batch norm is kept for a backward pass"
    );
    let rows = candidates.squeeze(0)?.to_device(&Device::Cpu)?;
    let of = |tensor: Tensor| tensor.flatten_all()?.to_vec1::<f32>();
    let close = |what: &str, actual: &[f32], expected: &[f32]| {
        assert_eq!(actual.len(), expected.len());
        for (a, e) in actual.iter().zip(expected) {
            let near = (a - e).abs() <= tolerance * e.abs().max(1.);
            assert!(near, "{what}: {actual:?}, expected {expected:?}");
        }
    };
    let others = rows.narrow(0, 4, numbers - 4)?;
    close(
        "the mean box",
        &of(rows.narrow(0, 0, 4)?.mean(1)?)?,
        &expected.boxes,
    );
    close("the mean", &of(others.mean_all()?)?, &[expected.others]);
    close(
        "the mean square",
        &of(others.sqr()?.mean_all()?)?,
        &[expected.squares],
    );
    for (at, boxed, first, last) in &expected.candidates {
        let one = of(rows.narrow(1, *at, 1)?)?;
        close(&format!("box {at}"), &one[..4], boxed);
        close(&format!("candidate {at}"), &one[4..8], first);
        close(&format!("candidate {at}"), &one[numbers - 3..], last);
    }
    Ok(())
}

/// Other images of a batch do not matter, and those with other sides are refused.
fn check_pictures(network: &impl Module, device: &Device) -> Result<()> {
    let both = pictures([2, 3, 32, 64], device)?;
    let results = network.forward(&both)?;
    for i in 0..2 {
        let alone = network.forward(&both.narrow(0, i, 1)?)?;
        assert_close(&alone, &results.narrow(0, i, 1)?, 2e-5);
    }
    for dims in [[1, 3, 32, 40], [1, 3, 0, 32], [1, 1, 32, 32]] {
        let picture = Tensor::zeros(&dims, DType::F32, device)?;
        let err = network.forward(&picture).map(|ys| ys.dims().to_vec());
        let err = err.expect_err("the picture is accepted").to_string();
        assert!(err.contains(&format!("{dims:?}")), "{err}");
    }
    Ok(())
}

fn yolo_v8(device: &Device) -> Result<()> {
    let network = YoloV8::detect(Size::N, weights(1.6, device))?;
    let expected = Expected {
        shape: [84, 126],
        boxes: [48.1064, 32.0251, -4.3993, -4.5642],
        others: 0.49582,
        squares: 0.247721,
        candidates: [
            (
                0,
                [3.9815, 4.0467, -3.2944, -3.3013],
                [0.519874, 0.476647, 0.537475, 0.529377],
                [0.519502, 0.478305, 0.513162],
            ),
            (
                105,
                [56.0797, 24.1152, -6.6857, -6.6964],
                [0.488402, 0.484203, 0.475393, 0.535886],
                [0.508625, 0.45509, 0.488239],
            ),
            (
                125,
                [80.2809, 48.0728, -13.6703, -13.7009],
                [0.494621, 0.52684, 0.459641, 0.516308],
                [0.476353, 0.488032, 0.525639],
            ),
        ],
    };
    check(&network.forward(&pictures(PICTURE, device)?)?, &expected)?;
    check_pictures(&network, device)
}
test_device!(yolo_v8);

fn yolo_v8_pose(device: &Device) -> Result<()> {
    let network = YoloV8::pose(Size::N, weights(1.6, device))?;
    let expected = Expected {
        shape: [56, 126],
        boxes: [48.1064, 32.0251, -4.3993, -4.5642],
        others: 22.988335,
        squares: 1208.4816,
        candidates: [
            (
                0,
                [3.9815, 4.0467, -3.2944, -3.3013],
                [0.509831, -0.455012, 1.782676, 0.533217],
                [1.68531, 1.330774, 0.503471],
            ),
            (
                105,
                [56.0797, 24.1152, -6.6857, -6.6964],
                [0.503113, 34.082804, 13.773149, 0.490717],
                [52.819724, 18.326039, 0.471345],
            ),
            (
                125,
                [80.2809, 48.0728, -13.6703, -13.7009],
                [0.535139, 55.138843, 30.274605, 0.49405],
                [53.766615, 38.7086, 0.503032],
            ),
        ],
    };
    check(&network.forward(&pictures(PICTURE, device)?)?, &expected)
}
test_device!(yolo_v8_pose);

/// With an eighth of the channels.
fn yolo_v3(device: &Device) -> Result<()> {
    let config = Config {
        channels: Config::COCO.channels / 8,
        ..Config::COCO
    };
    let network = YoloV3::load(&config, weights(1., device))?;
    let expected = Expected {
        shape: [84, 378],
        boxes: [47.6589, 31.7728, 41.7288, 43.8477],
        others: 0.249995,
        squares: 0.067045,
        candidates: [
            (
                0,
                [11.3879, 15.7137, 490.9413, 77.2642],
                [0.150542, 0.147852, 0.232984, 0.133855],
                [0.201366, 0.080445, 0.195791],
            ),
            (
                315,
                [75.1836, 20.0277, 29.1685, 26.8669],
                [0.288339, 0.266409, 0.279588, 0.264404],
                [0.321035, 0.272158, 0.27448],
            ),
            (
                377,
                [91.3325, 60.0064, 31.3357, 29.832],
                [0.283809, 0.260946, 0.235644, 0.260136],
                [0.283625, 0.25875, 0.277086],
            ),
        ],
    };
    check(&network.forward(&pictures(PICTURE, device)?)?, &expected)?;
    check_pictures(&network, device)
}
test_device!(yolo_v3);

/// Zeros, counted but for the statistics of batch norms.
struct Counted(Arc<AtomicUsize>);

impl SimpleBackend for Counted {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        if !name.contains(".running_") {
            self.0.fetch_add(s.elem_count(), Ordering::Relaxed);
        }
        Tensor::zeros(s, dtype, dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} is requested without a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

/// Parameters as ultralytics and pytorchyolo count them.
#[test]
fn networks_are_as_large_as_the_published_ones() -> Result<()> {
    fn count<T>(load: impl Fn(VarBuilder) -> Result<T>) -> Result<usize> {
        let counted = Arc::new(AtomicUsize::new(0));
        let backend = Box::new(Counted(counted.clone()));
        load(VarBuilder::from_backend(backend, DType::F32, Device::Cpu))?;
        Ok(counted.load(Ordering::Relaxed))
    }
    for (size, detect, pose) in [
        (Size::N, 3_157_200, 3_295_470),
        (Size::S, 11_166_560, 11_626_046),
        (Size::M, 25_902_640, 26_464_462),
        (Size::L, 43_691_520, 44_489_196),
        (Size::X, 68_229_648, 69_491_724),
    ] {
        assert_eq!(count(|vb| YoloV8::detect(size, vb))?, detect, "{size:?}");
        assert_eq!(count(|vb| YoloV8::pose(size, vb))?, pose, "{size:?}");
    }
    assert_eq!(count(|vb| YoloV3::load(&Config::COCO, vb))?, 61_949_149);
    Ok(())
}

#[test]
fn sizes_that_yolo_v8_sees() {
    for (size, expected) in [
        ((640, 480), (640, 480)),
        ((1280, 853), (640, 416)),
        ((300, 600), (320, 640)),
        ((12000, 9000), (640, 480)),
        ((1, 1), (640, 640)),
        ((1, 70_000), (32, 640)),
        ((u32::MAX, 1), (640, 32)),
    ] {
        assert_eq!(v8::input_size(size), expected, "{size:?}");
    }
}

const LIMITS: Limits = Limits {
    confidence: 0.25,
    iou: 0.45,
};

/// Candidates with two classes and a point, in columns: box, classes, point.
fn candidates(columns: &[[f32; 9]]) -> Result<Tensor> {
    Tensor::from_vec(columns.concat(), (columns.len(), 9), &Device::Cpu)?.t()
}

#[test]
fn the_likeliest_of_boxes_that_overlap_are_found() -> Result<()> {
    let columns = [
        [20., 30., 10., 20., 0.1, 0.6, 21., 31., 0.9],
        // Nearly the same box: less likely, of another class, and not likely enough.
        [20., 31., 10., 20., 0.2, 0.5, 0., 0., 0.],
        [20., 30., 10., 20., 0.7, 0.6, 1., 2., 0.3],
        [20., 30., 10., 20., 0.25, 0.25, 0., 0., 0.],
        // Elsewhere.
        [80., 30., 10., 20., 0.3, 0.3, 0., 0., 0.],
    ];
    let objects = found::objects(&candidates(&columns)?, 2, LIMITS)?;
    let short: Vec<_> = objects
        .iter()
        .map(|object| (object.data.class, object.confidence, object.xmin))
        .collect();
    assert_eq!(short, [(0, 0.7, 15.), (1, 0.6, 15.), (0, 0.3, 75.)]);
    let Bbox {
        ymin, xmax, ymax, ..
    } = objects[1];
    assert_eq!([ymin, xmax, ymax], [20., 25., 40.]);
    let point = objects[1].data.points[0];
    assert_eq!([point.x, point.y, point.mask], [21., 31., 0.9]);
    Ok(())
}

#[test]
fn candidates_that_are_none_are_refused() -> Result<()> {
    for wrong in [f32::NAN, f32::INFINITY] {
        let mut column = [1f32; 9];
        column[2] = wrong;
        let err = found::objects(&candidates(&[column])?, 2, LIMITS).unwrap_err();
        assert!(err.to_string().contains("not finite"), "{err}");
    }
    for classes in [0, 3, 6] {
        let err = found::objects(&candidates(&[[1f32; 9]])?, classes, LIMITS).unwrap_err();
        assert!(err.to_string().contains("9 numbers"), "{err}");
    }
    let none = Tensor::zeros((9, 0), DType::F32, &Device::Cpu)?;
    assert!(found::objects(&none, 2, LIMITS)?.is_empty());
    Ok(())
}

#[test]
fn what_is_found_is_moved_into_the_picture() -> Result<()> {
    let column = [8., 16., 32., 8., 1., 0., -5., 1e9, 1.];
    let object = found::objects(&candidates(&[column])?, 2, LIMITS)?.remove(0);
    let Bbox {
        xmin,
        ymin,
        xmax,
        ymax,
        data: Object { points, .. },
        ..
    } = found::scaled(object, (64, 32), (128, 96));
    assert_eq!([xmin, ymin, xmax, ymax], [0., 36., 48., 60.]);
    assert_eq!([points[0].x, points[0].y], [0., 95.]);
    Ok(())
}

const RED: Rgb<u8> = Rgb([255, 0, 0]);

fn drawn(size: (u32, u32), draw: impl FnOnce(&mut Canvas)) -> Vec<String> {
    let mut picture = RgbImage::from_pixel(size.0, size.1, Rgb([9; 3]));
    draw(&mut Canvas::new(&mut picture));
    let letter = |pixel: &Rgb<u8>| match *pixel {
        RED => '#',
        Rgb([0, 0, 0]) => '+',
        _ => '.',
    };
    let rows = picture.rows();
    rows.map(|row| row.map(letter).collect()).collect()
}

#[test]
fn boxes_lines_and_labels_are_drawn() {
    let frame = drawn((5, 4), |canvas| canvas.frame([1., 0.], [3.4, 2.6], RED));
    assert_eq!(frame, [".###.", ".#.#.", ".#.#.", ".###."]);
    let line = drawn((4, 3), |canvas| canvas.line([0., 0.], [3., 2.], RED));
    assert_eq!(line, ["#...", ".##.", "...#"]);
    let point = drawn((4, 3), |canvas| canvas.point([0., 1.], RED));
    assert_eq!(point, ["##..", "##..", "##.."]);
    let above = drawn((9, 11), |canvas| canvas.label("t", [1., 10.], RED));
    assert_eq!(above[0], ".........");
    assert_eq!(above[1], ".#######.");
    assert_eq!(above[2], ".#+++++#.");
    assert_eq!(above[3], ".###+###.");
    assert_eq!(above[10], ".........");
    let below = drawn((9, 11), |canvas| canvas.label("t", [1., 5.], RED));
    assert_eq!(below[6], ".#+++++#.");
}

#[test]
fn nothing_is_drawn_outside_a_picture() {
    let dot = drawn((1, 1), |canvas| {
        canvas.frame([-5., -5.], [1e9, 1e9], RED);
        canvas.line([0., 0.], [0., 0.], RED);
        canvas.label("person 93%", [-1e12, 1e12], RED);
    });
    assert_eq!(dot, ["#"]);
}

#[test]
fn classes_have_different_colors() {
    let colors: Vec<_> = (0..80).map(|class| draw::color(class).0).collect();
    for (i, color) in colors.iter().enumerate() {
        assert!(color.iter().any(|part| *part > 200), "{color:?} is dark");
        assert!(!colors[..i].contains(color), "{i} has a color twice");
    }
}
