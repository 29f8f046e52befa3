"""What each query of Nexmark means, in SQL over all events at once; written independently."""

NOW = "2026-01-01"
"""Where the clock of the driver stands that runs q12."""


_RANK = {
    "total": "true",
    "rank1": "price < 10000",
    "rank2": "price >= 10000 and price < 1000000",
    "rank3": "price >= 1000000",
}
_COUNTS = ", ".join(f"count(*) filter ({where}) {r}_bids" for r, where in _RANK.items())
_DISTINCT = ", ".join(
    f"count(distinct {column}) filter ({where}) {r}_{column}s"
    for column in ("bidder", "auction")
    for r, where in _RANK.items()
)

_SQL = {
    "q0": "select auction, bidder, price, date_time, extra from bids",
    "q1": "select auction, bidder, date_time, extra, price * 0.908::double price from bids",
    "q2": "select auction, price from bids where auction % 123 = 0",
    "q3": """
        select p.name, p.city, p.state, a.id from auctions a join persons p on a.seller = p.id
        where a.category = 10 and p.state in ('OR', 'ID', 'CA')
    """,
    "q4": """
        select category, avg(final) average from (
            select a.id, a.category, max(b.price) final from auctions a, bids b
            where a.id = b.auction and b.date_time between a.date_time and a.expires
            group by all
        ) group by category
    """,
    "q9": """
        select a.id, category, seller, expires, a.date_time, auction, bidder, price,
            b.date_time bid_time
        from auctions a, bids b
        where a.id = b.auction and b.date_time between a.date_time and a.expires
        qualify row_number() over (
            partition by a.id order by price desc, b.date_time, bidder desc
        ) = 1
    """,
    "q19": """
        select auction, bidder, price, date_time, row_number() over (
            partition by auction order by price desc, bidder desc, date_time desc
        ) rank from bids qualify rank <= 10
    """,
    "q20": """
        select b.auction, b.bidder, b.price, b.date_time, a.id, a.item_name, a.seller,
            a.category
        from bids b join auctions a on b.auction = a.id where a.category = 10
    """,
    "q23": """
        select b.auction, b.bidder, b.price, p.id person, p.name, a.id sold, a.seller,
            a.category
        from bids b join persons p on b.bidder = p.id join auctions a on b.bidder = a.seller
    """,
    "q5": """
        with ends as (
            select auction, date_trunc('second', date_time)
                - to_seconds(extract(second from date_time)::int % 2)
                + to_seconds(2 * n) until
            from bids, range(1, 6) t(n)
        ), counts as (select auction, until, count(*) bids from ends group by all)
        select auction, bids, until from counts
        where bids = (select max(c.bids) from counts c where c.until = counts.until)
    """,
    "q7": """
        with w as (
            select *, time_bucket(interval '10 seconds', date_time) bucket from bids
        )
        select auction, bidder, price, date_time from w
        where price = (select max(o.price) from w o where o.bucket = w.bucket)
    """,
    "q8": """
        select id, name, date_time, b window_start, b + interval '10 seconds' window_end,
            b + interval '10 seconds' - interval '1 microsecond' window_time
        from (select *, time_bucket(interval '10 seconds', date_time) b from persons) p
        where exists (
            select 1 from auctions a where a.seller = p.id
            and time_bucket(interval '10 seconds', a.date_time) = p.b
        )
    """,
    "q10": """
        select auction, bidder, price, date_time, extra,
            strftime(date_time, '%Y-%m-%d') "day", strftime(date_time, '%H:%M') "minute"
        from bids
    """,
    "q11": """
        with starts as (
            select *, coalesce(date_time - lag(date_time) over w > interval '10 seconds', true) s
            from bids window w as (partition by bidder order by date_time)
        ), numbered as (
            select *, count(*) filter (s) over (partition by bidder order by date_time) n
            from starts
        )
        select bidder, min(date_time) window_start,
            max(date_time) + interval '10 seconds' window_end,
            max(date_time) + interval '10 seconds' window_time, count(*) bids
        from numbered group by bidder, n
    """,
    "q12": """
        select bidder, timestamp '$now' window_start,
            timestamp '$now' + interval '10 seconds' window_end,
            timestamp '$now' + interval '9999999 microseconds' window_time, count(*) bids
        from bids group by bidder
    """,
    "q13": """
        select auction, bidder, price, date_time, auction % 10000 as "key",
            'value-' || (auction % 10000) as "value"
        from bids
    """,
    "q14": """
        select auction, bidder, date_time, extra, price * 0.908::double price,
            case when hour(date_time) between 8 and 18 then 'dayTime'
                when hour(date_time) <= 6 or hour(date_time) >= 20 then 'nightTime'
                else 'otherTime' end time_of_day,
            length(extra) - length(replace(extra, 'c', '')) letters
        from bids where price * 0.908::double > 1000000 and price * 0.908::double < 50000000
    """,
    "q15": 'select date_time::date "day", $counts, $distinct from bids group by all',
    "q16": """
        select channel, date_time::date "day", max(strftime(date_time, '%H:%M')) last_minute,
            $counts, $distinct from bids group by all
    """,
    "q17": """
        select auction, date_time::date "day", $counts, min(price) min_price,
            max(price) max_price, avg(price) avg_price, sum(price)::bigint sum_price
        from bids group by all
    """,
    "q18": """
        select * from bids qualify row_number() over (
            partition by bidder, auction
            order by date_time desc, price desc, channel desc, url desc, extra desc
        ) = 1
    """,
    "q21": """
        select auction, bidder, price, channel, case lower(channel)
            when 'apple' then '0' when 'google' then '1' when 'facebook' then '2'
            when 'baidu' then '3'
            else nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '') end channel_id
        from bids where channel_id is not null
    """,
    "q22": """
        select auction, bidder, price, channel, nullif(split_part(url, '/', 4), '') dir1,
            nullif(split_part(url, '/', 5), '') dir2, nullif(split_part(url, '/', 6), '') dir3
        from bids
    """,
}

SQL = {
    name: text.replace("$counts", _COUNTS)
    .replace("$distinct", _DISTINCT)
    .replace("$now", NOW)
    for name, text in _SQL.items()
}
