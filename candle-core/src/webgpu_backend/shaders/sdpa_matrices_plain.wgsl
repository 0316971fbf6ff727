// Replaces a subgroup's cooperative matrices if there are none, so that tests can run the surrounding code. A lane holds its part of the
// sums: row lane / 2, columns 8 * (lane % 2) and the seven after it.

alias Four = vec4<f32>;
struct PlainLeft { row: array<vec4<f32>, 4> }
struct PlainRight { rows: array<vec4<f32>, 32> }
struct PlainSums { low: vec4<f32>, high: vec4<f32> }

var<workgroup> halves: array<f32, SUBGROUPS * 32u>;

fn other_half(x: f32, local: u32) -> f32 {
  halves[local] = x;
  workgroupBarrier();
  let other = halves[local ^ 1u];
  workgroupBarrier();
  return other;
}

fn left_of_tile(at: u32, lane: u32) -> PlainLeft {
  var left: PlainLeft;
  for (var i = 0u; i < 4u; i++) {
    left.row[i] = tile[at + lane / 2u * PITCH + i];
  }
  return left;
}

fn left_of_weights(at: u32, lane: u32) -> PlainLeft {
  var left: PlainLeft;
  for (var i = 0u; i < 4u; i++) {
    left.row[i] = weights[at + lane / 2u * KEY_PITCH + i];
  }
  return left;
}

// Keys are columns.
fn right_of_keys(at: u32, lane: u32) -> PlainRight {
  var right: PlainRight;
  for (var k = 0u; k < 16u; k++) {
    for (var c = 0u; c < 8u; c++) {
      right.rows[k * 2u + c / 4u][c % 4u] = tile[at + (lane % 2u * 8u + c) * PITCH + k / 4u][k % 4u];
    }
  }
  return right;
}

// Values are rows.
fn right_of_values(at: u32, lane: u32) -> PlainRight {
  var right: PlainRight;
  for (var k = 0u; k < 16u; k++) {
    right.rows[k * 2u] = tile[at + k * V_PITCH + lane % 2u * 2u];
    right.rows[k * 2u + 1u] = tile[at + k * V_PITCH + lane % 2u * 2u + 1u];
  }
  return right;
}

fn multiply_add(left: PlainLeft, right: PlainRight, sums: PlainSums) -> PlainSums {
  var a = left;
  var b = right;
  var c = sums;
  for (var k = 0u; k < 16u; k++) {
    c.low += a.row[k / 4u][k % 4u] * b.rows[k * 2u];
    c.high += a.row[k / 4u][k % 4u] * b.rows[k * 2u + 1u];
  }
  return c;
}

fn sums_of_scores(at: u32, lane: u32) -> PlainSums {
  let place = at + lane / 2u * SCORE_PITCH + lane % 2u * 2u;
  return PlainSums(scores[place], scores[place + 1u]);
}

fn put_scores(sums: PlainSums, at: u32, lane: u32) {
  let place = at + lane / 2u * SCORE_PITCH + lane % 2u * 2u;
  scores[place] = sums.low;
  scores[place + 1u] = sums.high;
}
