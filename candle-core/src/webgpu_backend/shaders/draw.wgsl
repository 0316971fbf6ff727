// dst[row] = a token for each row of logits, sampled with the row's parameters. dst[p.rows + row] = the number of its logits that are NaN
// or +inf, or all of them if all are -inf; the token is then 0. candle-nn's `sampling::draw` defines the result.
//
// With z = (logit - greatest) / temperature, tokens with z > LOWEST have weights exp(z). Top-k and top-p keep the tokens with z above a
// bound. The counts and sums above PIVOTS points of an interval find that bound, in at most ROUNDS rounds. Of the kept tokens, the one with
// the least x / weight is sampled, with x from an exponential distribution: its probability is its share of the weights.

const PIVOTS = 7u;
const ROUNDS = 10u;
const LOWEST = -80.0;
const LEAST = -0x1.fffffep+127f;
const MOST = 0x1.fffffep+127f;
const WORDS = 8u;
const TOGETHER = 4u;

// The bound is above x and not above y; z and w tokens are above x and above y.
var<workgroup> interval: vec4<f32>;
// The mass that top-p requires.
var<workgroup> wanted_mass: f32;

struct Settings {
  seed: vec2<u32>,
  position: u32,
  greedy: bool,
  top_k: f32,
  top_p: f32,
  min_p: f32,
  inverse: f32,
}

fn settings_of(row: u32) -> Settings {
  let at = p.draws_offset + row * WORDS;
  var s: Settings;
  s.seed = vec2<u32>(draws_at(at), draws_at(at + 1u));
  s.position = draws_at(at + 2u);
  s.greedy = draws_at(at + 3u) != 0u;
  s.top_k = f32(draws_at(at + 4u));
  s.top_p = bitcast<f32>(draws_at(at + 5u));
  s.min_p = bitcast<f32>(draws_at(at + 6u));
  s.inverse = bitcast<f32>(draws_at(at + 7u));
  return s;
}

// From an exponential distribution: -ln(1 - u), exact where u is small, and never infinite.
fn exponential(bits: u32) -> f32 {
  let u = (f32(bits) + 0.5) * 0x1p-32f;
  if (u < 0.01) {
    return u * (1.0 + u * (0.5 + u * (0x1.555556p-2f + u * 0.25)));
  }
  return -log(max(1.0 - u, 1e-9));
}

// The z of four tokens. word_at() returns LEAST for tokens after the last.
fn z_of(word: vec4<f32>, most: f32, inverse: f32) -> vec4<f32> {
  return (word - most) * inverse;
}

// Words of a row that an invocation loads together, WG apart.
fn words_at(start: u32, first: u32) -> array<vec4<f32>, TOGETHER> {
  var words = array<vec4<f32>, TOGETHER>();
  for (var i = 0u; i < TOGETHER; i++) {
    words[i] = vec4<f32>(LEAST);
    if (first + i * WG < p.words) {
      words[i] = word_at(start, first + i * WG);
    }
  }
  return words;
}

// Counts and sums above `PIVOTS` points from `low` on, `step` apart.
fn sums_above(start: u32, most: f32, inverse: f32, low: f32, step: f32, invocation: Invocation) {
  var sums = array<f32, COUNT>();
  for (var first = invocation.local; first < p.words; first += WG * TOGETHER) {
    var words = words_at(start, first);
    for (var i = 0u; i < TOGETHER; i++) {
      let z = z_of(words[i], most, inverse);
      if (any(z > vec4<f32>(low))) {
        let weights = exp(z);
        for (var j = 0u; j < PIVOTS; j++) {
          let above = select(vec4<f32>(), vec4<f32>(1.0), z > vec4<f32>(low + step * f32(j + 1u)));
          sums[j] += dot(above, vec4<f32>(1.0));
          sums[PIVOTS + j] += dot(above, weights);
        }
      }
    }
  }
  reduce(sums, invocation);
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  invocation: Invocation,
) {
  let row = flat(workgroup, workgroups, 0u, 1u);
  if (row >= p.rows) {
    return;
  }
  let s = settings_of(row);
  let start = p.x_offset + row * p.len;

  var most = LEAST;
  var counts = array<f32, COUNT>();
  for (var first = invocation.local; first < p.words; first += WG * TOGETHER) {
    var words = words_at(start, first);
    for (var i = 0u; i < TOGETHER; i++) {
      for (var lane = 0u; lane < 4u; lane++) {
        let x = words[i][lane];
        if (is_nan(x) || bitcast<u32>(x) == 0x7f800000u) {
          counts[0] += 1.0;
        } else {
          most = max(most, x);
        }
      }
    }
  }
  most = workgroup_max(most, invocation);
  reduce(counts, invocation);
  var unusable = total(0u);
  workgroupBarrier();
  if (most == LEAST && unusable == 0.0) {
    unusable = f32(p.len);
  }

  if (invocation.local == 0u) {
    // There is nothing between the ends of the final interval.
    interval = vec4<f32>(LOWEST, LOWEST, 0.0, 0.0);
  }
  if (!s.greedy && (s.top_k < f32(p.len) || s.top_p < 1.0)) {
    // With a step of 0 all points are the lower end.
    sums_above(start, most, s.inverse, LOWEST, 0.0, invocation);
    if (invocation.local == 0u) {
      let count = total(0u);
      wanted_mass = s.top_p * total(PIVOTS);
      if (count >= s.top_k || s.top_p < 1.0) {
        interval = vec4<f32>(LOWEST, 0.0, count, 0.0);
      }
    }
  }
  for (var round = 0u; round < ROUNDS; round++) {
    let now = workgroupUniformLoad(&interval);
    if (now.z - now.w <= 1.0) {
      break;
    }
    let step = (now.y - now.x) / f32(PIVOTS + 1u);
    sums_above(start, most, s.inverse, now.x, step, invocation);
    if (invocation.local == 0u) {
      var next = now;
      for (var j = 0u; j < PIVOTS; j++) {
        let at = now.x + step * f32(j + 1u);
        let count = total(j);
        if (count < s.top_k && (s.top_p >= 1.0 || total(PIVOTS + j) < wanted_mass)) {
          next = vec4<f32>(next.x, at, next.z, count);
          break;
        }
        next = vec4<f32>(at, next.y, count, next.w);
      }
      interval = next;
    }
    workgroupBarrier();
  }
  let bound = workgroupUniformLoad(&interval).x;

  var best = MOST;
  var token = 0u;
  for (var first = invocation.local; first < p.words; first += WG * TOGETHER) {
    var words = words_at(start, first);
    for (var i = 0u; i < TOGETHER; i++) {
      var z = z_of(words[i], most, s.inverse);
      if (s.greedy) {
        z = select(vec4<f32>(LEAST), vec4<f32>(), words[i] == vec4<f32>(most));
      }
      if (!any(z > vec4<f32>(bound))) {
        continue;
      }
      let group = first + i * WG;
      let bits = philox(vec2<u32>(group, s.position), s.seed);
      let weights = exp(z);
      for (var lane = 0u; lane < 4u; lane++) {
        if (z[lane] > bound && weights[lane] >= s.min_p) {
          let score = select(exponential(bits[lane]) / weights[lane], 0.0, s.greedy);
          if (score < best) {
            best = score;
            token = group * 4u + lane;
          }
        }
      }
    }
  }
  let least = -workgroup_max(-best, invocation);
  // The first of several equal ones, as a number that f32 represents.
  let mine = select(LEAST, -f32(token), best == least);
  let first = -workgroup_max(mine, invocation);
  if (invocation.local == 0u) {
    let usable = unusable == 0.0;
    dst_put(row, array<dst_t, 1>(select(0u, u32(first), usable)));
    dst_put(p.rows + row, array<dst_t, 1>(u32(unusable)));
  }
}
