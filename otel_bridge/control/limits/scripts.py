"""What Redis does to buckets, each script as one step: `bucket.py` in Lua.

A bucket is a hash (level, at, claimed, and each reservation's claim by its number) beside a sorted set of
those numbers, the oldest first. Both go when the bucket is full: that is what a bucket is that is not there.
"""

CLOCK = """
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
"""
"""Microseconds; the callers' clocks are never asked. Tests put another one here."""

_BUCKET = """
local EXACT = 1e-9

local function text(number) return string.format('%.17g', number) end

local function forget(bucket, number)
  local claim = tonumber(redis.call('HGET', bucket.key, number) or 0)
  redis.call('HDEL', bucket.key, number)
  redis.call('ZREM', bucket.queue, number)
  if redis.call('EXISTS', bucket.queue) == 1 then
    bucket.claimed = bucket.claimed - claim
  else
    bucket.claimed = 0
  end
  return claim
end

local function limit_claims(bucket)
  local excess = bucket.claimed - (bucket.capacity - bucket.level)
  while excess > 0 do
    local number = redis.call('ZRANGE', bucket.queue, 0, 0)[1]
    if not number then return end
    local claim = tonumber(redis.call('HGET', bucket.key, number) or 0)
    if claim > excess then
      redis.call('HSET', bucket.key, number, text(claim - excess))
      bucket.claimed = bucket.claimed - excess
      return
    end
    excess = excess - claim
    forget(bucket, number)
  end
end

local function load(key, queue, capacity, rate, now)
  local found = redis.pcall('HMGET', key, 'level', 'at', 'claimed')
  local level, at = tonumber(found[1] or nil), tonumber(found[2] or nil)
  if found.err or not level or not at then
    redis.call('DEL', key, queue)
    found, level, at = {}, capacity, now
  end
  local bucket = {key = key, queue = queue, capacity = capacity, rate = rate, at = now}
  bucket.level = math.min(capacity, level + math.max(0, now - at) / 1000000 * rate)
  bucket.claimed = tonumber(found[3] or 0) or 0
  limit_claims(bucket)
  return bucket
end

local function save(bucket)
  local short = bucket.capacity - bucket.level
  if short <= bucket.capacity * EXACT then
    redis.call('DEL', bucket.key, bucket.queue)
    return
  end
  redis.call('HSET', bucket.key, 'level', text(bucket.level), 'at', text(bucket.at),
    'claimed', text(bucket.claimed))
  local ttl = string.format('%.0f', math.min(math.ceil(short / bucket.rate * 1000) + 1, 1e15))
  redis.call('PEXPIRE', bucket.key, ttl)
  redis.call('PEXPIRE', bucket.queue, ttl)
end
"""

TAKE = (
    _BUCKET
    + """
local now = clock()
local drawn, enough = {}, true
for i = 3, #KEYS, 2 do
  local from = 4 + (i - 3) / 2 * 6
  local bucket = load(KEYS[i], KEYS[i + 1], tonumber(ARGV[from + 1]), tonumber(ARGV[from + 2]), now)
  bucket.name, bucket.amount = ARGV[from], tonumber(ARGV[from + 3])
  bucket.settles = ARGV[from + 5] == '1' and ARGV[2] == '1'
  bucket.wait = 0
  if bucket.level < bucket.amount - bucket.capacity * EXACT then
    bucket.wait = (bucket.amount - bucket.level) / bucket.rate
    if ARGV[from + 4] == '1' then enough = false end
  end
  drawn[#drawn + 1] = bucket
end
local number, parts = nil, {}
local answer = {}
for _, bucket in ipairs(drawn) do
  if enough and bucket.wait == 0 then
    bucket.level = bucket.level - bucket.amount
    if bucket.settles then
      number = number or redis.call('INCR', KEYS[1])
      redis.call('HSET', bucket.key, number, text(bucket.amount))
      redis.call('ZADD', bucket.queue, number, number)
      bucket.claimed = bucket.claimed + bucket.amount
      parts[#parts + 1] = {bucket.key, bucket.queue, bucket.amount, bucket.capacity, bucket.rate, bucket.name}
    end
  end
  save(bucket)
  answer[#answer + 1] = text(bucket.wait)
  answer[#answer + 1] = text(bucket.level)
end
if number then
  redis.call('RPUSH', KEYS[2], cmsgpack.pack({now, number, parts}))
  redis.call('LTRIM', KEYS[2], -ARGV[3], -1)
  redis.call('PEXPIRE', KEYS[2], ARGV[1])
end
return answer
"""
)
"""KEYS: the counter of reservations, the trace's reservations, then each bucket's hash and set.

ARGV: milliseconds for which a reservation waits, whether there is a trace, reservations of a trace at most;
then for each bucket the limit's name, capacity, rate a second, amount, whether it is enforced and settles.
Returns for each bucket the wait in seconds and the level.
"""

SETTLE = (
    _BUCKET
    + """
local now = clock()
local answers = {}
for i, key in ipairs(KEYS) do
  local used, finish = tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i])
  local answer = {}
  local first = redis.call('LINDEX', key, 0)
  local reservation = first and cmsgpack.unpack(first)
  if reservation and reservation[1] <= finish then
    redis.call('LPOP', key)
    for _, part in ipairs(reservation[3]) do
      local bucket = load(part[1], part[2], part[4], part[5], now)
      local claim = forget(bucket, reservation[2])
      local change = math.min(part[3] - used, claim)
      bucket.level = math.min(bucket.capacity, bucket.level + change)
      save(bucket)
      answer[#answer + 1] = part[6]
      answer[#answer + 1] = text(change)
    end
  end
  answers[i] = answer
end
return answers
"""
)
"""KEYS: traces' reservations. ARGV: for each, tokens used and when the span ended, unix microseconds.

Returns for each the limits' names and what came back to their buckets; nothing where nothing was reserved.
"""
