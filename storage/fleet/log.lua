#!lua name=dlbf_log

-- The log server's half of the protocol in docs/fleet-protocol.md: what must happen in one step.
--
-- FCALL dlbf_log_<function> 6 KEYS durable epoch argument...
--
-- KEYS, all of one slot:
--   1 state   hash    number identity settled head generation end ttl upload position meta, and b<position>: the begin
--                     records of generations that may still end; trimmed: the last record that is gone; how many leases
--                     there are, and opens: entries of 5
--   2 log     stream  <position>-0: one field with the record
--   3 leases  hash    name: "counter milliseconds label"
--   4 acks    zset    name: the position it has acknowledged
--   5 open    stream  <position>-0: adds that are not done
--   6 waits   zset    "position owner": adds whose writers wait, by position
-- and two whose names are made here, behind the state's: <state>:chunks:<epoch's number>:<upload>, a hash of chunks, and
-- <state>:wake:<position>, a list on which one writer waits.
--
-- Every reply begins with epoch, settled, head, generation, the position of its end, and the least position that a lease
-- has acknowledged.  tests/support/fleet_servers.py is the same in Python; a test compares the two.

local UPLOAD_MS = 600000   -- a filter that nobody finishes to upload is forgotten
local REPLACED_MS = 60000  -- a filter that was replaced: slow hosts may be loading it
local WAKE_MS = 60000

local run_id  -- of this process; no other has it

local function identity_of(durable)
  if durable == '1' then return 'durable' end
  run_id = run_id or string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  -- A server that was a replica in between has another one, and may have lost what it had answered.
  return run_id .. string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
end

local function id_of(position) return string.format('%.0f-0', position) end

local function position_of(id) return tonumber(string.match(id, '^%d+')) end

local function owner_of(lease) return string.match(lease, '^(.*)%.[^.]*$') or '' end

local function number_of(lease) return tonumber(string.match(lease, '[^.]*$')) end

-- Strings in the order of their bytes; `<` would use the server's locale.
local function is_before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- What one call knows: the fields of the state that replies begin with, and the keys.
local function load_state(keys)
  local f = redis.call('HMGET', keys[1], 'number', 'identity', 'settled', 'head', 'generation', 'end', 'ttl', 'position',
    'nonce', 'leases', 'opens', 'trimmed')
  return {
    keys = keys,
    number = tonumber(f[1] or 0), identity = f[2] or '', settled = tonumber(f[3] or 0), head = tonumber(f[4] or 0),
    generation = tonumber(f[5] or 0), ending = tonumber(f[6] or 0), ttl = tonumber(f[7] or 0),
    position = tonumber(f[8] or 0), nonce = f[9] or '',
    leases = tonumber(f[10] or 0), opens = tonumber(f[11] or 0), trimmed = tonumber(f[12] or 0),
  }
end

-- Whether keys were lost without the state (deleted, or evicted): nobody would be waited for, or open
-- adds be left out, or nobody could follow.
local function is_torn(state)
  return redis.call('HLEN', state.keys[3]) ~= state.leases or redis.call('ZCARD', state.keys[4]) ~= state.leases
    or redis.call('XLEN', state.keys[5]) ~= state.opens or redis.call('XLEN', state.keys[2]) ~= state.head - state.trimmed
end

local function epoch_of(state) return string.format('%.0f:', state.number) .. state.identity .. '.' .. state.nonce end

local function chunks_key(state, upload)
  return state.keys[1] .. ':chunks:' .. string.format('%.0f', state.number) .. ':' .. upload
end

-- No two epochs have one name, even if the server forgot its keys in between and counts from 1 again (FLUSHALL): whoever
-- has a lease of the epoch before would else not notice that nobody waits for it any more.
local function nonce()
  local now = redis.call('TIME')
  return now[1] .. string.format('%06d', now[2])
end

local function begin_epoch(state, identity, number)
  local upload = redis.call('HGET', state.keys[1], 'upload')
  if upload then redis.call('PEXPIRE', chunks_key(state, upload), REPLACED_MS) end
  redis.call('DEL', unpack(state.keys))
  state.nonce = nonce()
  redis.call('HSET', state.keys[1], 'number', number, 'identity', identity, 'ttl', state.ttl, 'nonce', state.nonce)
  state.number, state.identity, state.settled, state.head = tonumber(number), identity, 0, 0
  state.generation, state.ending, state.position = 0, 0, 0
  state.leases, state.opens, state.trimmed = 0, 0, 0
end

local function heading(state)
  local least = redis.call('ZRANGE', state.keys[4], 0, 0, 'WITHSCORES')
  local floor = least[2] and tonumber(least[2]) or state.head
  return { epoch_of(state), state.settled, state.head, state.generation, state.ending, floor }
end

local function append(state, record)
  state.head = state.head + 1
  redis.call('HSET', state.keys[1], 'head', state.head)
  redis.call('XADD', state.keys[2], id_of(state.head), 'r', record)
  return state.head
end

local function flat_of(entries)
  local flat = {}
  for i, entry in ipairs(entries) do
    flat[2 * i - 1] = position_of(entry[1])
    flat[2 * i] = entry[2][2]
  end
  return flat
end

local function records(state, after, limit)
  if tonumber(limit) <= 0 then return {} end
  return flat_of(redis.call('XRANGE', state.keys[2], id_of(tonumber(after) + 1), '+', 'COUNT', limit))
end

local function adds(state) return flat_of(redis.call('XRANGE', state.keys[5], '-', '+')) end

local function rows(state)
  local acked = {}
  local names = {}
  local scores = redis.call('ZRANGE', state.keys[4], 0, -1, 'WITHSCORES')
  for i = 1, #scores, 2 do
    names[#names + 1] = scores[i]
    acked[scores[i]] = tonumber(scores[i + 1])
  end
  if #names == 0 then return {} end
  table.sort(names, is_before)
  local flat = {}
  for i, lease in ipairs(redis.call('HMGET', state.keys[3], unpack(names))) do
    local counter, ttl = string.match(lease, '^(%d+) (%d+) ')
    flat[#flat + 1] = names[i]
    flat[#flat + 1] = tonumber(counter)
    flat[#flat + 1] = acked[names[i]]
    flat[#flat + 1] = tonumber(ttl)
  end
  return flat
end

-- The owner of the lease that has acknowledged least, what it has, and what the next one has; an owner has one lease.
local function two_least(state)
  local two = redis.call('ZRANGE', state.keys[4], 0, 1, 'WITHSCORES')
  if not two[1] then return '', math.huge, math.huge end
  return owner_of(two[1]), tonumber(two[2]), two[4] and tonumber(two[4]) or math.huge
end

-- Wake writers for whose adds no lease but their own is behind.
local function wake(state)
  if redis.call('EXISTS', state.keys[6]) == 0 then return end
  local last, least, second = two_least(state)
  for _, waiting in ipairs(redis.call('ZRANGEBYSCORE', state.keys[6], '-inf', second == math.huge and '+inf' or second)) do
    local position, owner = string.match(waiting, '^(%d+) (.*)$')
    if tonumber(position) <= (owner == last and second or least) then
      redis.call('ZREM', state.keys[6], waiting)
      local list = state.keys[1] .. ':wake:' .. position
      redis.call('RPUSH', list, epoch_of(state))
      redis.call('PEXPIRE', list, WAKE_MS)
    end
  end
end

local function set_lease(state, lease, counter, ttl, label)
  local is_new = redis.call('HSET', state.keys[3], lease, string.format('%.0f %.0f ', counter, ttl) .. label)
  if is_new == 1 then redis.call('HINCRBY', state.keys[1], 'leases', 1) end
end

local function drop_lease(state, lease)
  redis.call('HINCRBY', state.keys[1], 'leases', -redis.call('HDEL', state.keys[3], lease))
  redis.call('ZREM', state.keys[4], lease)
end

-- Adds are done, `args` from `first` on; the record is appended if one of them was open.
local function finish(state, record, args, first)
  local n = 0
  for i = first, #args do n = n + redis.call('XDEL', state.keys[5], args[i] .. '-0') end
  if n > 0 then
    redis.call('HSET', state.keys[1], 'opens', state.opens - n)
    append(state, record)
  end
end

-- A filter was uploaded: it stays, the one before goes soon.
local function keep(state, upload, position, meta)
  local before = redis.call('HGET', state.keys[1], 'upload')
  if before and before ~= upload then redis.call('PEXPIRE', chunks_key(state, before), REPLACED_MS) end
  redis.call('PERSIST', chunks_key(state, upload))
  redis.call('HSET', state.keys[1], 'upload', upload, 'position', position, 'meta', meta)
  state.position = tonumber(position)
end

-- Register a function that is done only if the caller's epoch is the log's.
local function register(name, act)
  redis.register_function('dlbf_log_' .. name, function(keys, args)
    local durable, epoch = table.remove(args, 1), table.remove(args, 1)
    local identity = identity_of(durable)
    local state = load_state(keys)
    if state.number == 0 or state.identity ~= identity or is_torn(state) then
      begin_epoch(state, identity, state.number + 1)
    end
    if epoch ~= epoch_of(state) then return heading(state) end
    local result = act(state, args)
    local reply = heading(state)
    for i = 1, #result do reply[6 + i] = result[i] end
    return reply
  end)
end

register('look', function(state, args)
  local f = redis.call('HMGET', state.keys[1], 'upload', 'meta', 'b' .. string.format('%.0f', state.generation))
  return { 1, f[1] or '', state.position, f[2] or '', f[3] or '', adds(state), records(state, args[1], args[2]) }
end)

register('hello', function(state, args)
  local lease, label, ttl, acked, limit = args[1], args[2], tonumber(args[3]), tonumber(args[4]), args[5]
  local mine, n_others = {}, 0
  for _, name in ipairs(redis.call('HKEYS', state.keys[3])) do
    if owner_of(name) ~= owner_of(lease) then
      n_others = n_others + 1
    else
      if number_of(name) > number_of(lease) then return { 0, state.ttl } end
      mine[#mine + 1] = name
    end
  end
  if n_others > 0 and state.ttl ~= ttl then return { 0, state.ttl } end
  local counter = 1
  for _, name in ipairs(mine) do
    if name == lease then
      counter = tonumber(string.match(redis.call('HGET', state.keys[3], lease), '^%d+')) + 1
      acked = math.max(acked, tonumber(redis.call('ZSCORE', state.keys[4], lease)))
    else
      drop_lease(state, name)
    end
  end
  if state.ttl ~= ttl then
    state.ttl = ttl
    redis.call('HSET', state.keys[1], 'ttl', ttl)
  end
  set_lease(state, lease, counter, ttl, label)
  redis.call('ZADD', state.keys[4], acked, lease)
  wake(state)
  return { 1, records(state, acked, limit) }
end)

register('renew', function(state, args)
  local lease, acked, limit, record = args[1], args[2], args[3], args[4]
  if #args > 4 then finish(state, record, args, 5) end
  local found = redis.call('HGET', state.keys[3], lease)
  if not found then return { 0 } end
  local counter, ttl, label = string.match(found, '^(%d+) (%d+) (.*)$')
  set_lease(state, lease, tonumber(counter) + 1, tonumber(ttl), label)
  if redis.call('ZADD', state.keys[4], 'GT', 'CH', acked, lease) == 1 then wake(state) end
  return { 1, records(state, acked, limit) }
end)

register('add', function(state, args)
  local owner, record = args[1], args[2]
  local position = append(state, record)
  redis.call('XADD', state.keys[5], id_of(position), 'r', record)
  redis.call('HSET', state.keys[1], 'opens', state.opens + 1)
  local last, least, second = two_least(state)
  if (owner == last and second or least) < position then
    redis.call('ZADD', state.keys[6], position, string.format('%.0f ', position) .. owner)
  end
  return { 1, position, rows(state) }
end)

register('leases', function(state) return { 1, rows(state) } end)

register('revoke', function(state, args)
  local found = redis.call('HGET', state.keys[3], args[1])
  if not found or string.match(found, '^%d+') ~= args[2] then return { 0 } end
  drop_lease(state, args[1])
  wake(state)
  return { 1 }
end)

register('done', function(state, args)
  finish(state, args[1], args, 2)
  return { 1 }
end)

register('remove', function(state, args)
  if state.generation == 0 or tonumber(args[1]) ~= state.generation then return { 0 } end
  return { 1, append(state, args[2]) }
end)

register('begin', function(state, args)
  if state.settled == 0 then return { 0 } end
  local open = adds(state)
  local generation = append(state, args[1])
  redis.call('HSET', state.keys[1], 'b' .. string.format('%.0f', generation), args[1])
  return { 1, generation, open }
end)

register('put_chunk', function(state, args)
  local key = chunks_key(state, args[1])
  redis.call('HSET', key, args[2], args[3], args[2] .. ':sum', args[4])
  if redis.call('HGET', state.keys[1], 'upload') ~= args[1] then redis.call('PEXPIRE', key, UPLOAD_MS) end
  return { 1 }
end)

register('chunk', function(state, args)
  local f = redis.call('HMGET', chunks_key(state, args[1]), args[2], args[2] .. ':sum')
  if not f[1] then return { 0 } end
  return { 1, f[1], f[2] }
end)

register('end', function(state, args)
  local generation = tonumber(args[1])
  local begun = redis.call('HEXISTS', state.keys[1], 'b' .. string.format('%.0f', generation))
  if begun == 0 or generation <= state.generation then return { 0 } end
  -- A checkpoint of the generation before trimmed records that this one needs: nobody could load it.
  if tonumber(args[2]) < state.trimmed then return { 0 } end
  keep(state, args[3], args[2], args[4])
  for _, field in ipairs(redis.call('HKEYS', state.keys[1])) do
    local position = string.match(field, '^b(%d+)$')
    if position and tonumber(position) < generation then redis.call('HDEL', state.keys[1], field) end
  end
  state.generation = generation
  state.ending = append(state, args[5])
  redis.call('HSET', state.keys[1], 'generation', args[1], 'end', state.ending)
  return { 1, state.ending }
end)

register('checkpoint', function(state, args)
  if state.generation == 0 or tonumber(args[1]) ~= state.generation or tonumber(args[2]) <= state.position then
    return { 0 }
  end
  keep(state, args[3], args[2], args[4])
  return { 1 }
end)

register('trim', function(state, args)
  local last = math.min(tonumber(args[1]), state.position, state.head)
  redis.call('XTRIM', state.keys[2], 'MINID', '=', id_of(last + 1))
  redis.call('HSET', state.keys[1], 'trimmed', string.format('%.0f', math.max(state.trimmed, last)))
  return { 1 }
end)

register('settle', function(state)
  redis.call('HSET', state.keys[1], 'settled', 1)
  state.settled = 1
  return { 1 }
end)

register('new_epoch', function(state, args)
  if state.number >= tonumber(args[1]) then return { 0 } end
  begin_epoch(state, state.identity, args[1])
  return { 1 }
end)
