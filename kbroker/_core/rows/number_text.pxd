"""Parses numbers, dates and times in texts, for decoders of values. Functions return whether the text is one."""

from libc.stdint cimport int64_t, uint8_t

cdef extern from * nogil:
    """
    #ifndef KBROKER_NUMBER_TEXT
    #define KBROKER_NUMBER_TEXT
    #include <locale.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
    typedef __int128 kb_wide;

    /* Returns the C locale, so that strtod does not depend on the process's locale; 0 on failure. */
    static locale_t plain_locale(void) {
        static locale_t made = (locale_t)0;
        locale_t found = __atomic_load_n(&made, __ATOMIC_ACQUIRE), none = (locale_t)0;
        if (found == (locale_t)0) {
            found = newlocale(LC_ALL_MASK, "C", (locale_t)0);
            if (found != (locale_t)0
                && !__atomic_compare_exchange_n(&made, &none, found, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
                freelocale(found);
                found = none;
            }
        }
        return found;
    }
    extern double strtod_l(const char *, char **, locale_t);
    extern float strtof_l(const char *, char **, locale_t);

    /* Parses a number that is valid JSON, with a zero byte behind it. Fails only without the C locale. */
    static int text_double(const char *text, double *value) {
        locale_t plain = plain_locale();
        if (plain == (locale_t)0)
            return 0;
        *value = strtod_l(text, NULL, plain);
        return 1;
    }
    static int text_float(const char *text, float *value) {
        locale_t plain = plain_locale();
        if (plain == (locale_t)0)
            return 0;
        *value = strtof_l(text, NULL, plain);
        return 1;
    }

    /* Parses -?[0-9]+; fails if it does not fit. */
    static int text_integer(const uint8_t *p, const uint8_t *end, int64_t *value) {
        int minus = p < end && *p == '-';
        uint64_t found = 0, most = minus ? (uint64_t)1 << 63 : INT64_MAX;
        if (minus)
            p++;
        if (p == end)
            return 0;
        for (; p < end; p++) {
            uint64_t digit = (uint64_t)(*p - '0');
            if (digit > 9 || found > (most - digit) / 10)
                return 0;
            found = found * 10 + digit;
        }
        *value = minus ? (int64_t)(0 - found) : (int64_t)found;
        return 1;
    }

    static kb_wide ten_to(int power) {
        kb_wide found = 1;
        while (power-- > 0)
            found *= 10;
        return found;
    }

    /* Parses [-+]?[0-9]*[.]?[0-9]*([eE][-+]?[0-9]+)? as a decimal of `scale` digits behind the point, half rounded up.
       Fails if it has more than `precision` digits. */
    static int text_decimal(const uint8_t *p, const uint8_t *end, int precision, int scale, void *value) {
        const uint8_t *at, *digits_end;
        int64_t behind = 0, exponent = 0, shift, kept, count = 0, taken = 0;
        int minus = 0, point = 0, exponent_minus = 0, round_up = 0;
        kb_wide found = 0, most = ten_to(37);
        if (p < end && (*p == '-' || *p == '+'))
            minus = *p++ == '-';
        for (at = p; at < end && (*at == '.' || (*at >= '0' && *at <= '9')); at++) {
            if (*at == '.') {
                if (point)
                    return 0;
                point = 1;
            } else {
                count++;
                behind += point;
            }
        }
        digits_end = at;
        if (count == 0)
            return 0;
        if (at < end) {
            if (*at != 'e' && *at != 'E')
                return 0;
            at++;
            if (at < end && (*at == '-' || *at == '+'))
                exponent_minus = *at++ == '-';
            if (at == end)
                return 0;
            for (; at < end; at++) {
                if (*at < '0' || *at > '9')
                    return 0;
                if (exponent < 1000000)
                    exponent = exponent * 10 + (*at - '0');
            }
            if (exponent_minus)
                exponent = -exponent;
        }
        /* The result is digits * 10^shift: its first `kept` digits are taken, and the next one rounds. */
        shift = exponent - behind + scale;
        kept = shift < 0 ? count + shift : count;
        for (at = p; at < digits_end; at++) {
            if (*at == '.')
                continue;
            if (taken == kept) {
                round_up = *at >= '5';
                break;
            }
            if (taken > kept)
                break;
            if (found >= most)
                return 0;
            found = found * 10 + (*at - '0');
            taken++;
        }
        found += round_up;
        if (found != 0 && shift > 0) {
            if (shift > 38)
                return 0;
            while (shift-- > 0) {
                if (found >= most)
                    return 0;
                found *= 10;
            }
        }
        if (found >= ten_to(precision))
            return 0;
        if (minus)
            found = -found;
        memcpy(value, &found, 16);
        return 1;
    }

    /* Parses a number in big-endian two's complement, as Avro encodes decimals. */
    static int bytes_decimal(const uint8_t *p, int64_t size, int precision, void *value) {
        kb_wide found = size > 0 && p[0] >= 0x80 ? -1 : 0, limit = ten_to(precision);
        while (size > 16) {
            if (*p != (found < 0 ? 0xff : 0))
                return 0;
            p++;
            size--;
        }
        if (size == 16 && (p[0] >= 0x80) != (found < 0))
            return 0;
        for (; size > 0; size--)
            found = (kb_wide)((unsigned __int128)found << 8 | *p++);
        if (found >= limit || found <= -limit)
            return 0;
        memcpy(value, &found, 16);
        return 1;
    }

    static int64_t days_of(int64_t year, int64_t month, int64_t day) {
        int64_t era, of_era, of_year;
        year -= month <= 2;
        era = (year >= 0 ? year : year - 399) / 400;
        of_era = year - era * 400;
        of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
        return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
    }

    /* Parses up to `most` digits, and returns how many there were. */
    static int some_digits(const uint8_t **p, const uint8_t *end, int most, int64_t *value) {
        int count = 0;
        *value = 0;
        for (; *p < end && count < most && **p >= '0' && **p <= '9'; ++*p, count++)
            *value = *value * 10 + (**p - '0');
        return count;
    }

    /* Parses [+-]yyyy[-m[m][-d[d]]], a year of 4 to 6 digits, and moves *p behind it. *whole: whether it has a day. */
    static int text_days(const uint8_t **p, const uint8_t *end, int64_t *days, int *whole) {
        static const int lengths[12] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
        int64_t year, month = 1, day = 1;
        int minus = 0;
        *whole = 0;
        if (*p < end && (**p == '-' || **p == '+'))
            minus = *(*p)++ == '-';
        if (some_digits(p, end, 6, &year) < 4)
            return 0;
        if (minus)
            year = -year;
        if (*p < end && **p == '-') {
            ++*p;
            if (!some_digits(p, end, 2, &month))
                return 0;
            if (*p < end && **p == '-') {
                ++*p;
                if (!some_digits(p, end, 2, &day))
                    return 0;
                *whole = 1;
            }
        }
        if (month < 1 || month > 12 || day < 1 || day > lengths[month - 1])
            return 0;
        if (month == 2 && day == 29 && (year % 4 || (year % 100 == 0 && year % 400)))
            return 0;
        *days = days_of(year, month, day);
        return 1;
    }

    static void trimmed(const uint8_t **p, const uint8_t **end) {
        while (*p < *end && **p <= ' ')
            ++*p;
        while (*p < *end && (*end)[-1] <= ' ')
            --*end;
    }

    /* Parses a day. What follows it behind a blank or T is ignored. */
    static int text_date(const uint8_t *p, const uint8_t *end, int64_t *days) {
        int whole;
        trimmed(&p, &end);
        if (!text_days(&p, end, days, &whole))
            return 0;
        return p == end || (whole && (*p == ' ' || *p == 'T'));
    }

    /* Parses a time zone: Z, UTC, GMT, or [+-]h[h], [+-]h[h]:m[m] or [+-]hhmm, with or without UTC or GMT before it. */
    static int text_zone(const uint8_t *p, const uint8_t *end, int64_t *seconds) {
        int64_t hours = 0, minutes = 0;
        int minus;
        *seconds = 0;
        if (end - p == 1 && *p == 'Z')
            return 1;
        if (end - p >= 3 && (memcmp(p, "UTC", 3) == 0 || memcmp(p, "GMT", 3) == 0))
            p += 3;
        if (p == end)
            return 1;
        if (*p != '+' && *p != '-')
            return 0;
        minus = *p++ == '-';
        if (!some_digits(&p, end, 2, &hours))
            return 0;
        if (p < end && *p == ':') {
            p++;
            if (!some_digits(&p, end, 2, &minutes))
                return 0;
        } else if (p < end && some_digits(&p, end, 2, &minutes) != 2)
            return 0;
        if (p != end || minutes > 59 || hours * 60 + minutes > 18 * 60)
            return 0;
        *seconds = (hours * 60 + minutes) * (minus ? -60 : 60);
        return 1;
    }

    /* Parses a time, in microseconds since 1970; without a zone it is UTC. *zoned: whether it has a zone. */
    static int text_timestamp(const uint8_t *p, const uint8_t *end, int64_t *micros, int *zoned) {
        int64_t days, hour = 0, minute = 0, second = 0, fraction = 0, zone = 0;
        int whole, count;
        *zoned = 0;
        trimmed(&p, &end);
        if (!text_days(&p, end, &days, &whole))
            return 0;
        if (p < end) {
            if (!whole || (*p != ' ' && *p != 'T'))
                return 0;
            p++;
            if (!some_digits(&p, end, 2, &hour) || p == end || *p++ != ':' || !some_digits(&p, end, 2, &minute))
                return 0;
            if (p < end && *p == ':') {
                p++;
                if (!some_digits(&p, end, 2, &second))
                    return 0;
                if (p < end && *p == '.') {
                    p++;
                    for (count = some_digits(&p, end, 6, &fraction); count < 6; count++)
                        fraction *= 10;
                    while (p < end && *p >= '0' && *p <= '9')
                        p++;
                }
            }
            while (p < end && *p == ' ')
                p++;
            if (p < end) {
                if (!text_zone(p, end, &zone))
                    return 0;
                *zoned = 1;
            }
        }
        if (hour > 23 || minute > 59 || second > 59)
            return 0;
        second += days * 86400 + hour * 3600 + minute * 60 - zone;
        return !__builtin_mul_overflow(second, 1000000, micros) && !__builtin_add_overflow(*micros, fraction, micros);
    }
    #endif
    """
    bint text_double(const char *text, double *value)
    bint text_float(const char *text, float *value)
    bint text_integer(const uint8_t *p, const uint8_t *end, int64_t *value)
    bint text_decimal(const uint8_t *p, const uint8_t *end, int precision, int scale, void *value)
    bint bytes_decimal(const uint8_t *p, int64_t size, int precision, void *value)
    bint text_date(const uint8_t *p, const uint8_t *end, int64_t *days)
    bint text_timestamp(const uint8_t *p, const uint8_t *end, int64_t *micros, int *zoned)
