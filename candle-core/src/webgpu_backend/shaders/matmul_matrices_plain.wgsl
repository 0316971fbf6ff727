// Replaces a subgroup's cooperative matrices if there are none, so that tests can run the surrounding code. A lane holds its part of the
// sums: row lane / 2, columns 8 * (lane % 2) and the seven after it.

struct PlainLeft { row: array<vec4<f32>, 4> }
struct PlainRight { cols: array<vec4<f32>, 32> }
struct PlainSums { cols: array<f32, 8> }

fn left(at: u32, lane: u32) -> PlainLeft {
  var left: PlainLeft;
  for (var i = 0u; i < 4u; i++) {
    left.row[i] = lhs_tile[at + lane / 2u * PITCH + i];
  }
  return left;
}

fn right(at: u32, lane: u32) -> PlainRight {
  var right: PlainRight;
  for (var i = 0u; i < 32u; i++) {
    right.cols[i] = rhs_tile[at + (lane % 2u * 8u + i / 4u) * PITCH + i % 4u];
  }
  return right;
}

fn right_of_rows(at: u32, lane: u32) -> PlainRight {
  var right: PlainRight;
  for (var i = 0u; i < 32u; i++) {
    let col = lane % 2u * 8u + i / 4u;
    for (var j = 0u; j < 4u; j++) {
      right.cols[i][j] = rhs_tile[at + (i % 4u * 4u + j) * RHS_PITCH + col / 4u][col % 4u];
    }
  }
  return right;
}

fn multiply_add(left: PlainLeft, right: PlainRight, sums: PlainSums) -> PlainSums {
  var a = left;
  var b = right;
  var c = sums;
  for (var i = 0u; i < 32u; i++) {
    c.cols[i / 4u] += dot(a.row[i % 4u], b.cols[i]);
  }
  return c;
}

fn store_sums(lane: u32, sums: PlainSums, slot: u32, pitch: u32) {
  var c = sums;
  for (var i = 0u; i < 8u; i++) {
    fragments[slot + lane / 2u * pitch + lane % 2u * 8u + i] = c.cols[i];
  }
}
