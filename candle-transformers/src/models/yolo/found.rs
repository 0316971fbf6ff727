//! From a network's candidates to objects.

use crate::object_detection::{non_maximum_suppression, Bbox, KeyPoint};
use candle_core::{bail, Result, Tensor};

/// The class of an object, and the points of its body.
#[derive(Debug, Clone)]
pub struct Object {
    /// Its number among the network's classes.
    pub class: usize,
    /// The points of its body, none of a network that detects.
    pub points: Vec<KeyPoint>,
}

/// When a candidate is an object.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// It is more likely than that.
    pub confidence: f32,
    /// Maximum overlap (IoU) with a more probable one of its class.
    pub iou: f32,
}

/// The objects among candidates, (4 + classes + 3 * points, candidates), likeliest first. Boxes and points are in pixels of what the network
/// saw.
///
/// # Errors
/// The candidates have another shape, or numbers that are not finite, as those of weights that do not belong to the network.
pub fn objects(candidates: &Tensor, classes: usize, limits: Limits) -> Result<Vec<Bbox<Object>>> {
    let rows = candidates.to_vec2::<f32>()?;
    if classes == 0 || rows.len() < 4 + classes || !(rows.len() - 4 - classes).is_multiple_of(3) {
        bail!(
            "{} numbers for each candidate; they must be 4, {classes} classes and 3 for each point",
            rows.len()
        )
    }
    if rows.iter().flatten().any(|number| !number.is_finite()) {
        bail!(
            "the network gives numbers that are not finite: are these weights those of the model?"
        )
    }
    let (boxes, rest) = rows.split_at(4);
    let (likely, points) = rest.split_at(classes);
    let mut of_classes: Vec<Vec<Bbox<Object>>> = vec![Vec::new(); classes];
    for i in 0..boxes[0].len() {
        // The first of the likeliest.
        let best = |best: usize, class: usize| {
            if likely[class][i] > likely[best][i] {
                class
            } else {
                best
            }
        };
        let class = (0..classes).fold(0, best);
        let confidence = likely[class][i];
        if confidence > limits.confidence {
            let [x, y, w, h] = [0, 1, 2, 3].map(|row| boxes[row][i]);
            let point = |rows: &[Vec<f32>]| KeyPoint {
                x: rows[0][i],
                y: rows[1][i],
                mask: rows[2][i],
            };
            of_classes[class].push(Bbox {
                xmin: x - w / 2.,
                ymin: y - h / 2.,
                xmax: x + w / 2.,
                ymax: y + h / 2.,
                confidence,
                data: Object {
                    class,
                    points: points.chunks_exact(3).map(point).collect(),
                },
            });
        }
    }
    non_maximum_suppression(&mut of_classes, limits.iou);
    let mut objects: Vec<_> = of_classes.into_iter().flatten().collect();
    objects.sort_by(|a, b| b.confidence.total_cmp(&a.confidence));
    Ok(objects)
}

/// An object in an image of the size `to`, where the network saw it in one of the size `from`. What is outside is moved to the edge.
pub fn scaled(mut object: Bbox<Object>, from: (u32, u32), to: (u32, u32)) -> Bbox<Object> {
    let scale = |at: f32, from: u32, to: u32| {
        let to = to as f32;
        (at * to / from as f32).clamp(0., to - 1.)
    };
    let across = |x| scale(x, from.0, to.0);
    let down = |y| scale(y, from.1, to.1);
    (object.xmin, object.xmax) = (across(object.xmin), across(object.xmax));
    (object.ymin, object.ymax) = (down(object.ymin), down(object.ymax));
    for point in &mut object.data.points {
        (point.x, point.y) = (across(point.x), down(point.y));
    }
    object
}
